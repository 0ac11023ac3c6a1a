// Makes the entries of a trace of what the core is told while a program runs, for a sink. Replays
// and what they allocate are left out: they are the core's own doing, and the simulator's core will
// decide on its own.
#pragma once

#include <c10/core/StorageImpl.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "adapter/trace/source.h"
#include "core/core.h"
#include "core/simulate/entry.h"

namespace coop {

struct Call;
struct PendingOperator;  // between begin and commit

// All calls but PauseScope under the engine's lock.
class Recorder {
 public:
  struct Options {
    bool source_lines = false;  // the user's line with every operator
    // Temporaries are what a kernel without memory happens to make: an estimate takes their place.
    bool estimate_temporaries = false;
  };

  // The sink gets every entry as soon as it is known, first a root for everything that is held.
  Recorder(const Core& core, Bytes header_bytes, const Options& options, EntrySink& sink);

  void allocated(const Storage* storage, Bytes bytes);
  void died(const Storage* storage);

  // The way of an operator. `begin` once its inputs are there; then one of the other two.
  void begin(const Call& call);
  // `replayable`: whether a recipe of it may be kept, whatever it made.
  void commit(const Call& call, Cost cost, double flops, bool replayable);
  void abort();

  // A leaf with a gradient, or the gradient.
  void stored(const Storage* storage, bool gradient) {
    mark(gradient ? EntryKind::kGradient : EntryKind::kLeaf, storage);
  }
  void materialize(const Storage* storage) { mark(EntryKind::kMaterialize, storage); }
  void evict(const Storage* storage) { mark(EntryKind::kEvict, storage); }
  void keep(const Storage* storage) { mark(EntryKind::kKeep, storage); }
  void unkeep(const Storage* storage) { mark(EntryKind::kUnkeep, storage); }
  void expose(const Storage* storage, c10::StorageImpl* external);
  // `storage` is null when the memory is not the arena's.
  void unseen_write(const Storage* storage, c10::StorageImpl* impl);
  void before_give_back(const Storage* storage) { mark(EntryKind::kGiveBack, storage); }
  void undefine(const Storage* storage) { mark(EntryKind::kUndefine, storage); }
  void begin_step();
  void end_step(bool boundary);

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
  void mark(EntryKind kind, const Storage* storage);
  void mark(EntryKind kind, int64_t id) { sink_.add({kind, id}); }
  void root(int64_t id, Bytes bytes) { sink_.add({EntryKind::kRoot, id, bytes}); }
  void add_memory(const Call& call, const PendingOperator& pending, OperatorEntry& entry);
  std::string source_of(const Call& call);

  const Bytes header_bytes_;
  const Options options_;
  EntrySink& sink_;
  int64_t next_id_ = 1;
  bool in_step_ = false;
  std::unordered_map<const Storage*, int64_t> ids_;
  std::unordered_map<c10::StorageImpl*, External> externals_;
  std::vector<SourceLine> sources_;  // those known so far
};

}  // namespace coop
