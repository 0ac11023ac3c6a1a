// Gives values their blocks: in free room, or in room that the evictor makes.
#pragma once

#include "core/engine/collector.h"
#include "core/engine/compactor.h"
#include "core/engine/evictor.h"
#include "core/engine/faults.h"
#include "core/engine/quiet_steps.h"
#include "core/policy/chooser.h"

namespace coop {

class Allocator {
 public:
  Allocator(Host& host, Graph& graph, Space& space, Chooser& chooser, Evictor& evictor,
            Mover& mover, Compactor& compactor, Collector& collector, QuietSteps& quiet_steps,
            HostCopies& host_copies, Faults& faults, Foresight& foresight, Journal& journal)
      : host_(host),
        graph_(graph),
        space_(space),
        chooser_(chooser),
        evictor_(evictor),
        mover_(mover),
        compactor_(compactor),
        collector_(collector),
        quiet_steps_(quiet_steps),
        host_copies_(host_copies),
        faults_(faults),
        foresight_(foresight),
        journal_(journal) {}

  // A storage with a block and no recipe yet; throws OutOfBudget.
  Storage* allocate(Bytes bytes, Side side);
  // Gives a new value a block, or recycles it and throws. `bytes` as asked for.
  void place(Value* value, Bytes bytes, bool small, Side side) {
    place(value, bytes, small, side, false);
  }

 private:
  void place(Value* value, Bytes bytes, bool small, Side side, bool foreseen);
  // By the program, and not by a replay.
  bool is_asked_for() const { return !journal_.is_restoring() || !host_.is_replaying(); }
  bool place_as_foreseen(Value* value);
  bool place_small(Value* value);
  void place_lowest(Value* value);
  void place_or_evict(Value* value, Side side);

  Host& host_;
  Graph& graph_;
  Space& space_;
  Chooser& chooser_;
  Evictor& evictor_;
  Mover& mover_;
  Compactor& compactor_;
  Collector& collector_;
  QuietSteps& quiet_steps_;
  HostCopies& host_copies_;
  Faults& faults_;
  Foresight& foresight_;
  Journal& journal_;
  int64_t gathered_serial_ = 0;  // of the optimizer for which gradients were gathered last
};

}  // namespace coop
