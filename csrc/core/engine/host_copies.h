// Copies of values in main memory: the way back that roots have too. A copy is made when a value
// leaves, and stays with it when it is back, until something writes the value: to leave again then
// costs nothing.
//
// Only what nobody but operators can use may leave so: what an operator made, and has not been
// handed to anybody by its address since.
//
// A schedule begins copies ahead. What is saved may stay for a while, until the copy is complete;
// what is loaded has its block, but nobody sees its bytes before await(): until then it neither
// leaves nor moves, and its storage shows nothing.
//
// Invariants (checked by is_valid()):
//   a value is saved if and only if it has extents here, which hold as many bytes as it has
//   what is arriving is saved
//   an evicted value that is saved is in no set of evicted values: no score counts it
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "core/engine/faults.h"
#include "core/host.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/policy/link.h"
#include "core/policy/scores.h"
#include "core/space/host_pool.h"
#include "core/space/space.h"

namespace coop {

class HostCopies {
 public:
  HostCopies(const Config& config, Host& host, Graph& graph, const Space& space, Scores& scores,
             Link& link, Faults& faults, Journal& journal)
      : host_(host),
        graph_(graph),
        space_(space),
        scores_(scores),
        link_(link),
        faults_(faults),
        journal_(journal),
        pool_(config.host_bytes, config.alignment) {}
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // An operator made the value: from now on it may leave by a copy.
  void allow(Value* value) {
    if (!pool_.is_on() || !space_.has(value) || is_closed_) return;
    scores_.touch(value);
    permit(value);
  }
  // It has another block now, which no search knows yet.
  void on_exchanged(Value* value);
  // Somebody besides operators may use its memory.
  void forbid(Value* value);
  // The value is about to be written, or is gone.
  void discard(Value* value) {
    if (value->is_saved()) drop(value);
  }
  // It is about to leave. False: there is no room for its bytes, or they could not be copied.
  bool save(Value* value);
  // It will leave soon.
  bool begin_to_save(Value* value);
  // Brings it back: a fresh storage with its bytes. It stays saved.
  Storage* load(Value* value);
  // The same, but who uses the value awaits it.
  Storage* begin_to_load(Value* value);
  void await(Value* value);
  // Everything may leave and move from now on.
  void await_all();
  // Its block is about to be written: its copy out may still read it.
  void before_write(const Value* value) {
    if (value->is_saved()) host_.placed(*value);
  }
  // It is evicted, and to be recomputed although it is saved.
  void forget(Value* value);
  // An operator or a replay has ended without a word of what it used.
  void ended_untold() { untold_clock_ = journal_.clock; }
  // Nothing leaves by a copy any more; what has left has its copy.
  void close();

  bool is_closed() const { return is_closed_; }
  const HostPool& pool() const { return pool_; }
  bool is_valid() const;

 private:
  struct Copy {
    HostExtents extents;
    double complete;     // clock
    double arrives = 0;  // its copy in: clock
  };

  void permit(Value* value);
  void drop(Value* value);
  Storage* begin_copy_in(Value* value, bool later);
  void wait_until(double clock);
  void end_arriving(Value* value);
  bool make_room(Bytes bytes);
  bool copy_out(Value* value, const HostExtents& extents);
  bool refuse(Value* value);
  void permit_refused();
  double last_use(const Value* value) const { return std::max(value->last_access, untold_clock_); }

  struct Refused {
    int32_t id;
    int64_t serial;
  };

  Host& host_;
  Graph& graph_;
  const Space& space_;
  Scores& scores_;
  Link& link_;
  Faults& faults_;
  Journal& journal_;
  HostPool pool_;
  std::unordered_map<Value*, Copy> copies_;
  std::vector<Value*> arriving_;
  std::vector<Refused> refused_;
  double untold_clock_ = 0;
  bool is_closed_ = false;
};

}  // namespace coop
