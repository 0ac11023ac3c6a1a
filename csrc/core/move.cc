// Moving values: the last resort of an operator that does not fit, and what comes to stay.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/core.h"

namespace coop {

namespace {

// Overlapping bytes are moved in pieces as long as the way is: too many pieces for too little.
bool is_worth_moving(const Value* value, Bytes way) {
  constexpr Bytes kMostPieces = 32;
  return way * kMostPieces >= value->bytes;
}

}  // namespace

bool Core::make_room(Storage* const* inputs, size_t num_inputs, Bytes wanted, int* attempt) {
  if (std::exchange(failed_, false)) return false;
  if (!config_.last_resort || !host_->may_move()) return false;
  constexpr int kMostAttempts = 5;
  while (++*attempt <= kMostAttempts) {
    if (*attempt == 4 && !unprotect_late()) continue;
    bool changed = rearrange(inputs, num_inputs, *attempt);
    if (*attempt == kMostAttempts) {
      // A large temporary that is freed in the middle of an operator leaves a hole that the next
      // one, a little larger, cannot use; at the other end it would not lie beside it.
      alternating_bytes_ = wanted / 2;
      next_end_ = Side::kRight;
      changed = true;
    }
    if (changed) {
      ++stats_.num_retries;
      return true;
    }
  }
  return false;
}

// False when nothing has changed by it.
bool Core::rearrange(Storage* const* inputs, size_t num_inputs, int attempt) {
  const int64_t mark = ++mark_;
  std::vector<Value*> values;
  for (size_t i = 0; i < num_inputs; ++i) {
    Value* value = inputs[i]->value;
    if (value->mark == mark) continue;
    value->mark = mark;
    if (is_movable(value)) values.push_back(value);
  }
  bool changed = false;
  if (attempt > 2) {
    to_evict_.clear();
    for_each_block([&](const Block& block) {
      if (block.is_free() || block.value->mark == mark || !is_movable(block.value)) return;
      if (block.value->late) return;
      to_evict_.push_back(block.value);
    });
    for (Value* value : to_evict_) evict_value(value);
    changed = !to_evict_.empty();
  }
  return move_together(std::move(values), mark, attempt > 1, /*evict=*/true) || changed;
}

// The same for a replay that did not fit. What waits for it, or is read by it, is locked only to be
// resident, so it can be moved: first that, then the gradients too. Nothing is evicted but what is
// in the way. The third time late values are not protected any more.
bool Core::make_room_for_replay(int* attempt) {
  if (failed_ || !goes_further() || !host_->may_move()) return false;
  constexpr int kMostAttempts = 3;
  while (++*attempt <= kMostAttempts) {
    if (*attempt == kMostAttempts) return unprotect_late();
    // Any locks besides ours are of an operator that runs on another thread.
    std::unordered_map<Value*, int32_t> locks;
    for (Value* value : kept_) ++locks[value];
    for (const Frame& frame : frames_) ++locks[frame.value];
    for (const Edge& edge : frames_.back().value->record->inputs) locks.try_emplace(edge.value, 0);
    const int64_t mark = ++mark_;
    std::vector<Value*> values;
    for (const auto& [value, own] : locks) {
      if (value->arena != &arena_ || !value->is_evictable() || value->locks != own) continue;
      value->mark = mark;
      values.push_back(value);
    }
    if (move_together(std::move(values), mark, *attempt > 1, /*evict=*/true)) {
      ++stats_.num_retries;
      return true;
    }
  }
  return false;
}

// Slides values, which have the mark, and late ones down in the order of their addresses; with
// `gradients`, all gradients that may be moved too. False when none has moved.
bool Core::move_together(std::vector<Value*> values, int64_t mark, bool gradients, bool evict) {
  if (gradients && host_->may_move_gradients()) {
    for_each_block([&](const Block& block) {
      Value* value = block.value;
      if (block.is_free() || !value->gradient || value->mark == mark || value->locks > 0) return;
      const Storage* storage = value->storage;
      if (storage == nullptr || storage->pins > 0 || storage->exposed) return;
      value->mark = mark;
      values.push_back(value);
    });
  }
  for_each_block([&](const Block& block) {
    Value* value = block.value;
    if (block.is_free() || !value->late || value->mark == mark || !is_movable(value)) return;
    value->mark = mark;
    values.push_back(value);
  });
  std::sort(values.begin(), values.end(),
            [](const Value* a, const Value* b) { return a->offset < b->offset; });
  bool moved = false;
  for (Value* value : values) moved |= slide_down(value, mark, evict);
  return moved;
}

// What an optimizer makes stays for good, and in the free room between gradients it would split the
// arena when they go. So they are put together before the first of it is placed: at the first step,
// and where there is pressure. Nothing is evicted for it.
void Core::gather_gradients() {
  if (!goes_further() || !host_->may_move()) return;
  if (step_ == 0) needed_.gather(arena_, host_->may_move_gradients());
  if (stats_.num_evictions == 0 && step_ > 0) return;
  move_together({}, ++mark_, /*gradients=*/true, /*evict=*/false);
}

// To the lowest address that it can have without passing what does not move, or what has the mark.
// What lies there is evicted; without `evict`, it is not passed either.
bool Core::slide_down(Value* value, int64_t barrier_mark, bool evict) {
  const BlockMap& blocks = arena_.blocks();
  const Bytes from = value->offset;
  BlockMap::Position position = blocks.find(from);
  Bytes to = from;
  while (blocks.has_previous(position)) {
    position = blocks.previous(position);
    const Block& block = blocks.at(position);
    if (!block.is_free() &&
        (!evict || !is_movable(block.value) || block.value->mark == barrier_mark)) {
      break;
    }
    to = block.offset;
  }
  if (!is_worth_moving(value, from - to)) return false;
  to_evict_.clear();
  for (position = blocks.find(to);; position = blocks.next(position)) {
    const Block& block = blocks.at(position);
    if (block.offset >= std::min(to + value->bytes, from)) break;
    if (!block.is_free()) to_evict_.push_back(block.value);
  }
  for (Value* other : to_evict_) evict_value(other);
  move_down(value, to);
  return true;
}

// Moves values of a window, of which nothing else is left, to its low end, so that its room is in
// one piece. Where that is not worth the while, one is evicted after all.
void Core::pack(const std::vector<Value*>& values) {
  const BlockMap& blocks = arena_.blocks();
  for (Value* value : values) {
    const BlockMap::Position position = blocks.find(value->offset);
    if (!blocks.has_previous(position)) continue;
    const Block below = blocks.at(blocks.previous(position));
    if (!below.is_free()) continue;
    if (is_worth_moving(value, below.bytes)) {
      move_down(value, below.offset);
    } else {
      evict_value(value);
    }
  }
}

void Core::move_down(Value* value, Bytes to) {
  const Bytes from = value->offset;
  emit(EventKind::kFree, value);
  arena_.free(from);
  arena_.place_at(value, to, value->bytes);
  moved(value, from, to);
}

// To a free block at or above `least`; false when there is none.
bool Core::move_above(Value* value, Bytes least) {
  const Bytes from = value->offset;
  const Bytes to = arena_.place(value, value->bytes, Side::kRight);
  if (to == Arena::kNowhere) return false;
  if (to < least) {
    arena_.free(to);
    return false;
  }
  emit(EventKind::kFree, value);
  arena_.free(from);
  moved(value, from, to);
  return true;
}

// Into free room beside something that stays, if it does not lie so already; not worth an eviction.
void Core::move_aside(Value* value) {
  join_sets();
  update_blocks();
  const BlockMap& blocks = arena_.blocks();
  auto stays = [&](BlockMap::Position position) { return blocks.at(position).cost == kBarrier; };
  auto is_low = [&](BlockMap::Position position) {
    return !blocks.has_previous(position) || stays(blocks.previous(position));
  };
  auto is_high = [&](BlockMap::Position position) {
    return !blocks.has_next(position) || stays(blocks.next(position));
  };
  const Bytes from = value->offset;
  const BlockMap::Position own = blocks.find(from);
  if (is_low(own) || is_high(own)) return;
  auto take = [&](Bytes to, bool low) {
    emit(EventKind::kFree, value);
    if (low) {
      arena_.place_at(value, to, value->bytes);
    } else {
      to = arena_.place_at_end(value, to, value->bytes);
    }
    arena_.free(from);
    moved(value, from, to);
  };
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    if (!blocks.may_have_free(c, value->bytes)) continue;
    for (BlockMap::Position position{c, 0}; position.slot < blocks.chunk(c).count;
         ++position.slot) {
      const Block& block = blocks.at(position);
      if (!block.is_free() || block.bytes < value->bytes) continue;
      const bool low = is_low(position);
      if (low || is_high(position)) return take(block.offset, low);
    }
  }
}

void Core::moved(Value* value, Bytes from, Bytes to) {
  value->offset = to;
  value->is_candidate = false;
  mark_stale(value, kStaleAccess);
  refresh(value);
  host_->move(*value, from);
  stats_.moved_bytes += value->bytes;
  emit(EventKind::kAllocate, value, value->bytes, 3);
  if (value->record != nullptr) {
    emit(EventKind::kRecord, value, static_cast<int64_t>(value->record->cost));
  }
}

}  // namespace coop
