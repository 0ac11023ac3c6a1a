// The ways back of a value that leaves: to replay its recipe, or to copy bytes that were saved when
// it left. The only place that knows them. To add one: docs/extending.md.
#pragma once

#include "core/engine/collector.h"
#include "core/host.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/policy/scores.h"
#include "core/space/space.h"

namespace coop {

class Restorer {
 public:
  Restorer(Host& host, Graph& graph, Space& space, Scores& scores, Collector& collector,
           Foresight& foresight, Journal& journal)
      : host_(host),
        graph_(graph),
        space_(space),
        scores_(scores),
        collector_(collector),
        foresight_(foresight),
        journal_(journal) {}

  // What it costs to bring the value back when all that it needs is there: its cheapest way.
  static Cost restore_cost(const Value* value) { return value->cost; }
  // Gives a resident root a way back: its bytes are saved when it leaves.
  void let_leave_by_saving(Value* value);
  // The value is about to lose its block: its way back has to be whole.
  void prepare_to_leave(Value* value);
  // Brings it back. All that its recipe reads is resident.
  void restore(Value* value);

 private:
  void adopt(Value* value, Storage* made, bool wanted);

  Host& host_;
  Graph& graph_;
  Space& space_;
  Scores& scores_;
  Collector& collector_;
  Foresight& foresight_;
  Journal& journal_;
};

}  // namespace coop
