// Writes down what the core is told while a program runs: the entries of a trace
// (docs/trace-format.md). Replays and what they allocate are left out: they are the core's own
// doing, and the simulator's core will decide on its own.
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "adapter/trace/source.h"
#include "core/core.h"

namespace coop {

struct Call;

// All calls but PauseScope under the engine's lock.
class Recorder {
 public:
  struct Options {
    bool source_lines = false;  // the user's line with every operator
    // Temporaries are what a kernel without memory happens to make: an estimate takes their place.
    bool estimate_temporaries = false;
  };

  Recorder(const Core& core, Bytes header_bytes, const Options& options);

  void allocated(const Storage* storage, Bytes bytes);
  void died(const Storage* storage);

  // The way of an operator. `begin` once its inputs are there; then one of the other two.
  void begin(const Call& call);
  // `replayable`: whether a record of it may be kept, whatever it made.
  void commit(const Call& call, Cost cost, double flops, bool replayable);
  void abort();

  // A leaf with a gradient, or the gradient.
  void stored(const Storage* storage, bool gradient) {
    mark(gradient ? "make_root" : "leaf", storage);
  }
  void materialize(const Storage* storage) { mark("materialize", storage); }
  void evict(const Storage* storage) { mark("evict", storage); }
  void keep(const Storage* storage) { mark("pin", storage); }
  void unkeep(const Storage* storage) { mark("unpin", storage); }
  void expose(const Storage* storage, c10::StorageImpl* external);
  // `storage` is null when the memory is not the arena's.
  void unseen_write(const Storage* storage, c10::StorageImpl* impl);
  void begin_step();
  void end_step(bool boundary);

  // The entries so far, as JSON lines.
  std::string take() { return std::move(lines_); }

  // What this thread allocates meanwhile is a replay's.
  class PauseScope {
   public:
    PauseScope();
    ~PauseScope();
    PauseScope(const PauseScope&) = delete;
    PauseScope& operator=(const PauseScope&) = delete;
  };

 private:
  struct External {
    int64_t id;
    // Keeps the address from being given to another storage.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };

  int64_t define(const Storage* storage);
  int64_t external(c10::StorageImpl* impl);
  void sweep_externals();
  void mark(const char* kind, const Storage* storage);
  void mark(const char* kind, int64_t id);
  void root(int64_t id, Bytes bytes);

  const Bytes header_bytes_;
  const Options options_;
  std::string lines_;
  int64_t next_id_ = 1;
  bool in_step_ = false;
  std::unordered_map<const Storage*, int64_t> ids_;
  std::unordered_map<c10::StorageImpl*, External> externals_;
  std::vector<SourceLine> sources_;  // those known so far
};

}  // namespace coop
