// Moves blocks and copies bytes within the arena. What moves keeps its content, and the host and
// the scores are told.
#pragma once

#include "core/host.h"
#include "core/journal.h"
#include "core/policy/scores.h"
#include "core/space/space.h"

namespace coop {

class Mover {
 public:
  Mover(Host& host, Space& space, Scores& scores, Journal& journal)
      : host_(host), space_(space), scores_(scores), journal_(journal) {}

  // To a lower address: the free block that starts there, and its own, are enough room.
  void move_down(Value* value, Bytes to);
  // To where there is room, but for its own.
  void move_to(Value* value, Bytes to);
  // To a free block at or above `least`; false when there is none.
  bool move_above(Value* value, Bytes least);
  // To an end of the free block that starts at `to`.
  void move_into(Value* value, Bytes to, Side end);

  void copy(Value* from, Value* to, Bytes bytes);

 private:
  void moved(Value* value, Bytes from, Bytes to);

  Host& host_;
  Space& space_;
  Scores& scores_;
  Journal& journal_;
};

}  // namespace coop
