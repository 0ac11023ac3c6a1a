#include "core/engine/compactor.h"

#include <algorithm>
#include <iterator>

namespace coop {

// The last resort, in the order of what it costs.
struct Compactor::Attempt {
  const char* name;
  Reach reach = Reach::kValues;
  bool evict_others = false;        // all but what a backward pass made
  bool unprotect_backward = false;  // which is evicted like everything else from now on
  bool alternate = false;           // large results are placed at both ends in turn

  bool adds_roots() const { return reach == Reach::kRoots && !evict_others && !unprotect_backward; }
};

bool Compactor::make_room(Storage* const* inputs, size_t num_inputs, Bytes wanted, int* attempt) {
  static constexpr Attempt kAttempts[] = {
      {"move the inputs together"},
      {"move the gradients too", Reach::kGradients},
      {"move all that stays", Reach::kRoots},
      {"evict everything else", Reach::kRoots, /*evict_others=*/true},
      {"evict what a backward pass made", Reach::kRoots, true, /*unprotect_backward=*/true},
      // A large temporary that is freed in the middle of an operator leaves a hole that the next
      // one, a little larger, cannot use; at the other end it would not lie beside it.
      {"place large results at both ends in turn", Reach::kRoots, true, false, /*alternate=*/true},
  };
  if (faults_.take() || !options_.retry_operators || !host_.may_move()) return false;
  foresight_.give_up();
  while (*attempt < static_cast<int>(std::size(kAttempts))) {
    const Attempt& next = kAttempts[(*attempt)++];
    if (next.adds_roots() && !options_.move_roots) continue;
    if (next.unprotect_backward && !scores_.stop_protecting_backward()) continue;
    const int64_t mark = graph_.new_mark();
    std::vector<Value*> values;
    for (size_t i = 0; i < num_inputs; ++i) {
      Value* value = inputs[i]->value;
      if (value->mark == mark) continue;
      value->mark = mark;
      if (space_.is_movable(value)) values.push_back(value);
    }
    bool changed = next.alternate;
    if (next.evict_others) {
      changed |= evictor_.evict_all_but(
          [&](const Value* value) { return value->mark == mark || value->made_in_backward; });
    }
    changed |= move_together(std::move(values), mark, next.reach, /*evict=*/true);
    if (next.alternate) host_.ends().alternate_from(wanted / 2);
    if (!changed) continue;
    ++journal_.stats.num_retries;
    return true;
  }
  return false;
}

bool Compactor::make_room_for_replay(const std::vector<Value*>& movable, int* attempt) {
  static constexpr Attempt kAttempts[] = {
      {"move what waits for it together"},
      {"move the gradients too", Reach::kGradients},
      {"move all that stays", Reach::kRoots},
      {"evict what a backward pass made", Reach::kRoots, false, /*unprotect_backward=*/true},
  };
  if (faults_.has_struck() || !options_.retry_replays || !host_.may_move()) return false;
  foresight_.give_up();
  while (*attempt < static_cast<int>(std::size(kAttempts))) {
    const Attempt& next = kAttempts[(*attempt)++];
    if (next.adds_roots() && !options_.move_roots) continue;
    if (next.unprotect_backward) return scores_.stop_protecting_backward();
    const int64_t mark = graph_.new_mark();
    for (Value* value : movable) value->mark = mark;
    // Nothing is evicted but what is in the way.
    if (move_together(movable, mark, next.reach, /*evict=*/true)) {
      ++journal_.stats.num_retries;
      return true;
    }
  }
  return false;
}

// Slides the values, which have the mark, what a backward pass made, and what is within reach down
// in the order of their addresses. False when none has moved.
bool Compactor::move_together(std::vector<Value*> values, int64_t mark, Reach reach, bool evict) {
  space_.for_each_block([&](const Block& block) {
    Value* value = block.value;
    if (block.is_free() || value->mark == mark || value->locks > 0) return;
    const bool moves = value->is_root() ? is_root_within(reach, value)
                                        : value->made_in_backward && space_.is_movable(value);
    if (!moves) return;
    value->mark = mark;
    values.push_back(value);
  });
  std::sort(values.begin(), values.end(),
            [](const Value* a, const Value* b) { return a->offset < b->offset; });
  bool moved = false;
  for (Value* value : values) moved |= slide_down(value, mark, evict);
  return moved;
}

// Of a root that nobody sees only replays read the bytes, by whatever address it has then. The
// others are moved only while gradients may be.
bool Compactor::is_root_within(Reach reach, const Value* value) const {
  const Storage* storage = value->storage;
  if (storage == nullptr) return options_.move_roots && value->users != nullptr;
  if (reach == Reach::kValues || !host_.may_move_gradients()) return false;
  if (storage->keeps > 0 || storage->exposed || storage->handle == nullptr) return false;
  return value->gradient || (reach == Reach::kRoots && options_.move_roots && !value->undefined);
}

void Compactor::gather_gradients() {
  // A schedule has a place for everything.
  if (!options_.gather_gradients || !host_.may_move() || foresight_.is_following()) return;
  const bool is_first = journal_.step == 0;
  if (is_first) {
    space_.needed().gather(space_.arena(), host_.may_move_gradients(), journal_.optimizer_serial);
  }
  if (!is_first && journal_.stats.num_evictions == 0) return;
  move_together({}, graph_.new_mark(), Reach::kGradients, /*evict=*/false);
}

// To the lowest address that it can have without passing what does not move, or what has the mark.
// What lies there is evicted; without `evict`, it is not passed either.
bool Compactor::slide_down(Value* value, int64_t mark, bool evict) {
  const BlockMap& blocks = space_.blocks();
  const Bytes from = value->offset;
  BlockMap::Position position = blocks.find(from);
  Bytes to = from;
  while (blocks.has_previous(position)) {
    position = blocks.previous(position);
    const Block& block = blocks.at(position);
    if (!block.is_free() &&
        (!evict || !space_.is_movable(block.value) || block.value->mark == mark)) {
      break;
    }
    to = block.offset;
  }
  if (!Mover::is_worth_moving(value, from - to)) return false;
  std::vector<Value*> in_the_way;
  blocks.for_each_in(to, std::min(to + value->bytes, from), [&](const Block& block) {
    if (!block.is_free()) in_the_way.push_back(block.value);
  });
  for (Value* other : in_the_way) {
    if (!evictor_.evict(other)) return false;
  }
  mover_.move_down(value, to);
  return true;
}

void Compactor::move_aside(Value* value) {
  scores_.join_pending();
  scores_.update_marked_blocks();
  const BlockMap& blocks = space_.blocks();
  auto stays = [&](BlockMap::Position position) { return blocks.at(position).cost == kBarrier; };
  auto is_low = [&](BlockMap::Position position) {
    return !blocks.has_previous(position) || stays(blocks.previous(position));
  };
  auto is_high = [&](BlockMap::Position position) {
    return !blocks.has_next(position) || stays(blocks.next(position));
  };
  const BlockMap::Position own = blocks.find(value->offset);
  if (is_low(own) || is_high(own)) return;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    if (!blocks.may_have_free(c, value->bytes)) continue;
    for (BlockMap::Position position{c, 0}; position.slot < blocks.chunk(c).count;
         ++position.slot) {
      const Block& block = blocks.at(position);
      if (!block.is_free() || block.bytes < value->bytes) continue;
      const bool low = is_low(position);
      if (!low && !is_high(position)) continue;
      return mover_.move_into(value, block.offset, low ? Side::kLeft : Side::kRight);
    }
  }
}

}  // namespace coop
