// Steps (Rule 11): an optimizer writes what stays, and recipes never pile up.
#pragma once

#include "core/engine/mover.h"
#include "core/engine/quiet_steps.h"
#include "core/engine/writes.h"
#include "core/model/graph.h"

namespace coop {

class Steps {
 public:
  Steps(Graph& graph, Space& space, Writes& writes, QuietSteps& quiet_steps, Collector& collector,
        Mover& mover, Host& host, Foresight& foresight, Journal& journal)
      : graph_(graph),
        space_(space),
        writes_(writes),
        quiet_steps_(quiet_steps),
        collector_(collector),
        mover_(mover),
        host_(host),
        foresight_(foresight),
        journal_(journal) {}

  // An optimizer starts to write.
  void begin();
  // It has ended. Not a boundary: it ran inside a backward pass, for some of the parameters.
  void end(bool boundary);

 private:
  Graph& graph_;
  Space& space_;
  Writes& writes_;
  QuietSteps& quiet_steps_;
  Collector& collector_;
  Mover& mover_;
  Host& host_;
  Foresight& foresight_;
  Journal& journal_;
};

}  // namespace coop
