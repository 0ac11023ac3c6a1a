// Brings evicted values back with all that they are made from: an explicit stack of values to
// restore (Rule 12).
//
// Invariant: frames and held values are locked, once each time they are listed; when nothing is
// being brought back, both lists are empty.
#pragma once

#include <vector>

#include "core/engine/allocator.h"
#include "core/engine/compactor.h"
#include "core/engine/restorer.h"

namespace coop {

class Materializer {
 public:
  Materializer(Graph& graph, Space& space, Scores& scores, Collector& collector, Restorer& restorer,
               Compactor& compactor, Allocator& allocator, Mover& mover, Faults& faults,
               Foresight& foresight, Journal& journal)
      : graph_(graph),
        space_(space),
        scores_(scores),
        collector_(collector),
        restorer_(restorer),
        compactor_(compactor),
        allocator_(allocator),
        mover_(mover),
        faults_(faults),
        foresight_(foresight),
        journal_(journal) {}
  Materializer(const Materializer&) = delete;
  Materializer& operator=(const Materializer&) = delete;

  // All of them resident at once. They are not locked afterwards, but nothing has been allocated
  // since the last of them came back.
  void make_resident(Value* const* values, size_t num_values);
  // Ahead of who needs it: a copy begins to come back, anything else is there when it returns.
  void begin_to_bring_back(Value* value);

  // For a replay: a fresh storage that holds the content of `value`, which the recipe reads, and
  // may be written: its own block if nothing else needs it, or a copy.
  Storage* take_for_write(Value* value, const Recipe& recipe);

  // An operator is writing the storage in place, and somebody else needs its old content, or writes
  // it too. The old version lives on without memory, as it would after the operator (Rule 5).
  void split_version(Storage* storage);

 private:
  struct Frame {
    Value* value;
    size_t held_begin;
    int attempt;  // to replay it
  };
  class Restoring;

  void bring_back(Value* const* values, size_t num_values, bool hold_inputs);
  void materialize(Value* target, bool hold_inputs);
  bool make_room_for_replay();
  void push(Value* value);
  void hold(Value* value);
  void let_go(size_t base);

  Graph& graph_;
  Space& space_;
  Scores& scores_;
  Collector& collector_;
  Restorer& restorer_;
  Compactor& compactor_;
  Allocator& allocator_;
  Mover& mover_;
  Faults& faults_;
  Foresight& foresight_;
  Journal& journal_;
  std::vector<Frame> frames_;
  std::vector<Value*> held_;  // for a frame that still waits for other inputs
};

}  // namespace coop
