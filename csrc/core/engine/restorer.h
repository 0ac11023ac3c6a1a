// The ways back of a value that leaves: to replay its recipe, or a copy in main memory. The only
// place that knows them. To add one: docs/extending.md.
#pragma once

#include "core/engine/collector.h"
#include "core/engine/host_copies.h"
#include "core/host.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/policy/scores.h"
#include "core/space/space.h"

namespace coop {

class Restorer {
 public:
  Restorer(Host& host, Graph& graph, Space& space, Scores& scores, Collector& collector,
           HostCopies& host_copies, Foresight& foresight, Journal& journal)
      : host_(host),
        graph_(graph),
        space_(space),
        scores_(scores),
        collector_(collector),
        host_copies_(host_copies),
        foresight_(foresight),
        journal_(journal) {}

  // Gives a resident root a way back: its bytes are saved when it leaves.
  void let_leave_by_saving(Value* value);
  // The value is about to lose its block: the cheaper way back has to be whole. False: there is
  // none, since main memory has no room.
  bool prepare_to_leave(Value* value);
  // Brings it back. All that its recipe reads is resident, unless it is saved.
  void restore(Value* value);
  // It is saved: its copy begins to come back.
  void begin_to_load(Value* value);
  // It is resident, and is about to be used.
  void await(Value* value) { host_copies_.await(value); }
  // Its block is.
  void before_write(const Value* value) { host_copies_.before_write(value); }

 private:
  void load(Value* wanted);
  void adopt(Value* value, Storage* made, bool wanted);

  Host& host_;
  Graph& graph_;
  Space& space_;
  Scores& scores_;
  Collector& collector_;
  HostCopies& host_copies_;
  Foresight& foresight_;
  Journal& journal_;
};

}  // namespace coop
