// Moves values together so that the room besides them is in one piece: the last resort of what does
// not fit, and gradients, which come to stay.
#pragma once

#include <vector>

#include "core/engine/evictor.h"
#include "core/engine/faults.h"
#include "core/engine/mover.h"
#include "core/model/graph.h"
#include "core/policy/options.h"

namespace coop {

class Compactor {
 public:
  Compactor(const PolicyOptions& options, Host& host, Graph& graph, Space& space, Scores& scores,
            Evictor& evictor, Mover& mover, Faults& faults, Foresight& foresight, Journal& journal)
      : options_(options),
        host_(host),
        graph_(graph),
        space_(space),
        scores_(scores),
        evictor_(evictor),
        mover_(mover),
        faults_(faults),
        foresight_(foresight),
        journal_(journal) {}

  // The next attempt, counted from 0, for an operator that did not fit and was aborted. An attempt
  // that changes nothing is passed over. False: there is none left.
  bool make_room(Storage* const* inputs, size_t num_inputs, Bytes wanted, int* attempt);
  // The same for a replay. `movable` are the values that wait for it, or are read by it: they are
  // locked only to be resident.
  bool make_room_for_replay(const std::vector<Value*>& movable, int* attempt);

  // What an optimizer makes stays for good, and in the free room between gradients it would split
  // the arena when they go. So they are put together before the first of it is placed: at the first
  // step, and where there is pressure. Nothing is evicted for it.
  void gather_gradients();
  // Into free room beside something that stays, if it does not lie so already; not worth an
  // eviction. For a gradient: there will be many.
  void move_aside(Value* value);

 private:
  struct Attempt;

  bool move_together(std::vector<Value*> values, int64_t mark, bool gradients, bool evict);
  bool slide_down(Value* value, int64_t mark, bool evict);

  const PolicyOptions& options_;
  Host& host_;
  Graph& graph_;
  Space& space_;
  Scores& scores_;
  Evictor& evictor_;
  Mover& mover_;
  Faults& faults_;
  Foresight& foresight_;
  Journal& journal_;
};

}  // namespace coop
