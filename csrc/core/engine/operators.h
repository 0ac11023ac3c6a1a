// The way of an operator through the core: begin, (the host runs it), then commit or abort.
#pragma once

#include "core/engine/evictor.h"
#include "core/engine/faults.h"
#include "core/engine/materializer.h"
#include "core/engine/operation.h"
#include "core/engine/quiet_steps.h"
#include "core/engine/writes.h"
#include "core/policy/copy_cost.h"

namespace coop {

class Operators {
 public:
  Operators(const PolicyOptions& options, Host& host, Graph& graph, Space& space, Scores& scores,
            CopyCost& copy_cost, Collector& collector, Evictor& evictor, Materializer& materializer,
            Writes& writes, QuietSteps& quiet_steps, HostCopies& host_copies, Faults& faults,
            Foresight& foresight, Journal& journal)
      : options_(options),
        host_(host),
        graph_(graph),
        space_(space),
        scores_(scores),
        copy_cost_(copy_cost),
        collector_(collector),
        evictor_(evictor),
        materializer_(materializer),
        writes_(writes),
        quiet_steps_(quiet_steps),
        host_copies_(host_copies),
        faults_(faults),
        foresight_(foresight),
        journal_(journal) {}

  // Materializes and locks the inputs, prepares the writes (which are inputs too).
  void begin(Operation& operation, Storage* const* inputs, size_t num_inputs);
  // The operator ran. `fresh` are the storages it made. With a recipe (owned from here on), what it
  // made or wrote may leave; without, it stays for good, or, if the operation is quiet, until
  // something has to be evicted. `inputs` are the values the recipe reads.
  void commit(Operation& operation, Recipe* recipe, Value* const* inputs, size_t num_inputs,
              Storage* const* fresh, size_t num_fresh, Cost cost);
  // The operator threw. What it may have half written is recomputed when it is next needed.
  void abort(Operation& operation);
  // Unlocks what an operation that wrote nothing had locked: it was no operator of its own.
  void let_go(Operation& operation);

 private:
  bool adopt(Recipe* recipe, const Operation& operation, Value* const* inputs, size_t num_inputs,
             Storage* const* fresh, size_t num_fresh, Cost cost);
  void end(Operation& operation);
  void follow_schedule(const std::vector<Value*>& inputs);
  void give_up(Value* value);
  void act(Schedule::Action::Kind kind, Value* value);

  const PolicyOptions& options_;
  Host& host_;
  Graph& graph_;
  Space& space_;
  Scores& scores_;
  CopyCost& copy_cost_;
  Collector& collector_;
  Evictor& evictor_;
  Materializer& materializer_;
  Writes& writes_;
  QuietSteps& quiet_steps_;
  HostCopies& host_copies_;
  Faults& faults_;
  Foresight& foresight_;
  Journal& journal_;
};

}  // namespace coop
