// Ends what nothing needs: values that no storage, recipe or lock keeps, and bytes that nobody can
// see (Rules 3 and 4).
//
// Invariant: between two calls from outside, every value is kept by a storage, a recipe, or a lock.
//
// Note [Dead values]
// What is dead and can be made again is worth its bytes while something that has to come back is
// made from it. Online, that is known of values that are evicted and that a storage shows: a dead
// value that one of them is made from directly stays, as a candidate like all others. It may be one
// that dies when they are evicted already, or one that a replay brings back on its way: without it,
// what is made from the sums of a residual stream would be replayed from the first of them, again
// and again. Whatever else is dead is freed at once. A schedule knows better (Foresight::wants).
#pragma once

#include <memory>
#include <vector>

#include "core/engine/host_copies.h"
#include "core/foresight/foresight.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/policy/scores.h"
#include "core/space/space.h"

namespace coop {

class Collector {
 public:
  Collector(const PolicyOptions& options, Graph& graph, Space& space, Scores& scores,
            HostCopies& host_copies, Foresight& foresight, Journal& journal)
      : options_(options),
        graph_(graph),
        space_(space),
        scores_(scores),
        host_copies_(host_copies),
        foresight_(foresight),
        journal_(journal) {}
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  void unlock(Value* value) {
    if (graph_.unlock(value) && value->storage == nullptr) reconsider(value);
  }
  // Something that kept the value, or its bytes, is gone.
  void reconsider(Value* value);
  // The last tensor of the storage is gone.
  void storage_died(Storage* storage);
  // The same, but its block must wait for the fence.
  void storage_died(Storage* storage, std::unique_ptr<Fence> fence);
  // Ends what pended a fence that has been passed. False: there was none.
  bool collect_passed(bool wait);
  // From now on its bytes, here or in main memory, are all there is (Rules 6 and 11).
  void drop_recipe(Value* value);
  // Ends what replays made for their own sake.
  void free_transients();
  // The step is over: frees all that is dead.
  void free_dead();

 private:
  void let_go(Value* value);
  bool is_worth_keeping(const Value* value) const;
  void destroy_unneeded();

  struct Transient {
    int32_t id;
    int64_t serial;
  };

  const PolicyOptions& options_;
  Graph& graph_;
  Space& space_;
  Scores& scores_;
  HostCopies& host_copies_;
  Foresight& foresight_;
  Journal& journal_;
  std::vector<Value*> unneeded_;  // to be destroyed
  std::vector<Transient> transients_;
};

}  // namespace coop
