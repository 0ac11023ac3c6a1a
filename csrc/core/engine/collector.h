// Ends what nothing needs: values that no storage, recipe or lock keeps, and bytes that nobody can
// see (Rules 3 and 4).
//
// Invariant: between two calls from outside, every value is kept by a storage, a recipe, or a lock;
// and unless values are being brought back, a dead value with a way back has no bytes.
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
  Collector(Graph& graph, Space& space, Scores& scores, HostCopies& host_copies,
            Foresight& foresight, Journal& journal)
      : graph_(graph),
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

 private:
  void let_go(Value* value);
  void destroy_unneeded();

  struct Transient {
    int32_t id;
    int64_t serial;
  };

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
