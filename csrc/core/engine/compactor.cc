#include "core/engine/compactor.h"

#include <algorithm>
#include <iterator>

namespace coop {

// The last resort, in the order of what it costs. Roots that somebody may see stay where they are,
// but for gradients: a thread that is not inside the budget may be reading them.
struct Compactor::Attempt {
  const char* name;
  bool gradients = false;           // are moved together too
  bool evict_others = false;        // all but what a backward pass made
  bool unprotect_backward = false;  // which is evicted like everything else from now on
  bool alternate = false;           // large results are placed at both ends in turn
};

namespace {

// Nobody has its address: a replay asks where it lies.
bool is_dead_root(const Value* value) {
  return value->is_root() && value->storage == nullptr && value->users != nullptr &&
         value->locks == 0;
}

}  // namespace

bool Compactor::make_room(Storage* const* inputs, size_t num_inputs, Bytes wanted, int* attempt) {
  static constexpr Attempt kAttempts[] = {
      {"move the inputs together"},
      {"move the gradients too", /*gradients=*/true},
      {"evict everything else", true, /*evict_others=*/true},
      {"evict what a backward pass made", true, true, /*unprotect_backward=*/true},
      // A large temporary that is freed in the middle of an operator leaves a hole that the next
      // one, a little larger, cannot use; at the other end it would not lie beside it.
      {"place large results at both ends in turn", true, true, false, /*alternate=*/true},
  };
  if (faults_.take() || !options_.retry_operators || !host_.may_move()) return false;
  foresight_.give_up();
  while (*attempt < static_cast<int>(std::size(kAttempts))) {
    const Attempt& next = kAttempts[(*attempt)++];
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
    changed |= move_together(std::move(values), mark, next.gradients, /*evict=*/true);
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
      {"move the gradients too", /*gradients=*/true},
      {"evict what a backward pass made", false, false, /*unprotect_backward=*/true},
  };
  if (faults_.has_struck() || !options_.retry_replays || !host_.may_move()) return false;
  foresight_.give_up();
  while (*attempt < static_cast<int>(std::size(kAttempts))) {
    const Attempt& next = kAttempts[(*attempt)++];
    if (next.unprotect_backward) return scores_.stop_protecting_backward();
    const int64_t mark = graph_.new_mark();
    for (Value* value : movable) value->mark = mark;
    // Nothing is evicted but what is in the way.
    if (move_together(movable, mark, next.gradients, /*evict=*/true)) {
      ++journal_.stats.num_retries;
      return true;
    }
  }
  return false;
}

// Slides the values, which have the mark, and what a backward pass made down in the order of their
// addresses; with `gradients`, all gradients that may be moved too; with `evict`, roots that only
// replays read. False when none has moved.
bool Compactor::move_together(std::vector<Value*> values, int64_t mark, bool gradients,
                              bool evict) {
  auto add = [&](Value* value) {
    value->mark = mark;
    values.push_back(value);
  };
  gradients &= host_.may_move_gradients();
  space_.for_each_block([&](const Block& block) {
    Value* value = block.value;
    if (block.is_free() || value->mark == mark) return;
    if (value->made_in_backward && space_.is_movable(value)) return add(value);
    if (evict && options_.move_dead_roots && is_dead_root(value)) return add(value);
    if (!gradients || !value->gradient || value->locks > 0) return;
    const Storage* storage = value->storage;
    if (storage != nullptr && storage->keeps == 0 && !storage->exposed) add(value);
  });
  std::sort(values.begin(), values.end(),
            [](const Value* a, const Value* b) { return a->offset < b->offset; });
  bool moved = false;
  for (Value* value : values) moved |= slide_down(value, mark, evict);
  return moved;
}

void Compactor::gather_gradients() {
  // A schedule has a place for everything.
  if (!options_.gather_gradients || !host_.may_move() || foresight_.is_following()) return;
  const bool is_first = journal_.step == 0;
  if (is_first) {
    space_.needed().gather(space_.arena(), host_.may_move_gradients(), journal_.optimizer_serial);
  }
  if (!is_first && journal_.stats.num_evictions == 0) return;
  move_together({}, graph_.new_mark(), /*gradients=*/true, /*evict=*/false);
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
  if (!is_worth_moving(value->bytes, from - to)) return false;
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
