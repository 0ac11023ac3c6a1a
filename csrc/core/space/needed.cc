#include "core/space/needed.h"

#include <algorithm>

#include "core/check.h"

namespace coop {

namespace {

// No program comes near it, and offsets stay exact.
constexpr Bytes kNoLimit = Bytes{1} << 50;

// Whether gathering would move it: as Compactor::move_together, where everything is resident and
// what a backward pass made (`made_before` so many values) was never evicted for want of room.
bool is_gathered(const Value* value, bool gradients, int64_t made_before) {
  if (value->locks > 0) return false;
  const Storage* storage = value->storage;
  if (value->gradient && gradients) {
    return storage != nullptr && storage->keeps == 0 && !storage->exposed;
  }
  const Recipe* recipe = value->recipe;
  return recipe != nullptr && recipe->in_backward && value->serial < made_before &&
         !value->is_kept();
}

}  // namespace

// The sides keep their distance to their ends. Holes are held until everything lies where it
// belongs.
void Needed::begin(Arena& arena) {
  if (is_on()) return;
  fold(arena);
  arena_ = std::make_unique<Arena>(0, kNoLimit, config_.alignment,
                                   config_.partition ? Fit::kFromEnds : Fit::kBest);
  Value hole;
  std::vector<Bytes> holes;
  std::vector<Block> right;
  Bytes middle = 0;
  auto take = [&](const Block& block, Bytes offset) {
    if (block.is_free()) {
      holes.push_back(offset);
    } else {
      set_offset(block.value, offset);
    }
  };
  arena.blocks().for_each([&](Block block) {
    const Bytes end = block.offset + block.bytes;
    // The room in the middle has another size here.
    if (block.is_free() && block.offset <= arena.middle() && arena.middle() <= end) return;
    if (block.offset >= arena.middle()) {
      right.push_back(block);
      return;
    }
    arena_->place_at(block.is_free() ? &hole : block.value, block.offset, block.bytes);
    take(block, block.offset);
    middle = end;
  });
  while (!right.empty()) {
    const Block block = right.back();
    right.pop_back();
    Value* value = block.is_free() ? &hole : block.value;
    take(block, arena_->place_at_end(value, middle, block.bytes));
  }
  for (const Bytes offset : holes) arena_->free(offset);
}

void Needed::set_offset(const Value* value, Bytes offset) {
  const auto id = static_cast<size_t>(value->id);
  if (id >= offsets_.size()) offsets_.resize(2 * id + 1, Arena::kNowhere);
  offsets_[id] = offset;
}

// With more room it would have lain elsewhere, so what comes after it would, too.
void Needed::depart(const Value* value, Arena& arena) {
  begin(arena);
  free(value);
}

void Needed::place(Value* value, Side side) {
  const Bytes offset = arena_->place(value, value->bytes, end(side));
  COOP_ASSERT(offset != Arena::kNowhere);
  set_offset(value, offset);
}

// It did not fit; what the program would have done after that is not known.
void Needed::refused(Value* value, Side side, Arena& arena) {
  config_.budget = kNoLimit;  // this one has not passed
  is_other_program_ = true;
  if (value->bytes <= config_.small_bytes) stray_bytes_ -= value->bytes;
  begin(arena);
  place(value, side);
  free(value);
}

void Needed::free(const Value* value) {
  const Bytes from = offset(value);
  if (from == Arena::kNowhere) return;
  arena_->free(from);
  set_offset(value, Arena::kNowhere);
}

void Needed::handed_over(const Value* from, Value* to) {
  if (!is_on() || offset(from) == Arena::kNowhere) return;
  arena_->hand_over(offset(from), to);
  set_offset(to, offset(from));
  set_offset(from, Arena::kNowhere);
}

void Needed::exchanged(Value* a, Value* b) {
  if (!is_on()) return;
  const Bytes of_a = offset(a);
  const Bytes of_b = offset(b);
  if (of_a != Arena::kNowhere) arena_->hand_over(of_a, b);
  if (of_b != Arena::kNowhere) arena_->hand_over(of_b, a);
  set_offset(a, of_b);
  set_offset(b, of_a);
}

void Needed::gather(Arena& arena, bool gradients, int64_t optimizer_serial) {
  constexpr Bytes kMostPieces = 32;  // with less room in the middle it would stay where it is
  Bytes largest = 0;
  std::vector<Value*> values;
  const int64_t made_before = config_.policy.protect_backward ? optimizer_serial : 0;
  (is_on() ? *arena_ : arena).blocks().for_each([&](const Block& block) {
    if (block.is_free() || !is_gathered(block.value, gradients, made_before)) return;
    largest = std::max(largest, block.bytes);
    values.push_back(block.value);
  });
  const Bytes least = (largest + kMostPieces - 1) / kMostPieces;
  if (!is_on()) {
    arena.want_middle(arena.rounded(least));
    if (arena.reach() <= arena.end() - arena.begin()) return;
    begin(arena);  // they stay where they are, for want of room in the middle
  }
  arena_->want_middle(arena.rounded(least));
  const BlockMap& blocks = arena_->blocks();
  for (Value* value : values) {
    const Bytes from = offset(value);
    const BlockMap::Position position = blocks.find(from);
    if (!blocks.has_previous(position)) continue;
    const Block below = blocks.at(blocks.previous(position));
    if (!below.is_free() || below.bytes * kMostPieces < value->bytes) continue;
    arena_->free(from);
    arena_->place_at(value, below.offset, value->bytes);
    set_offset(value, below.offset);
  }
}

// What was taken beside the extents while there were so many of them.
void Needed::fold(Arena& arena) {
  most_ = std::max(most_, (is_on() ? *arena_ : arena).take_reach() - num_extents_ * extent_bytes_);
}

void Needed::extent_added(Value* extent, Arena& arena) {
  extent_bytes_ = extent->bytes;
  // It is in the arena already.
  if (is_on()) {
    fold(arena);
    place(extent, Side::kLeft);
    ++num_extents_;
  } else {
    ++num_extents_;
    fold(arena);
  }
  most_extents_ = std::max(most_extents_, num_extents_);
}

void Needed::extent_freed(const Value* extent, Arena& arena) {
  fold(arena);
  if (is_on()) free(extent);
  --num_extents_;
}

// One extent holds all small values in a budget that is large enough for that: then it is exact.
bool Needed::suffices(Bytes budget, Bytes others, Bytes small_bytes) const {
  if (config_.small_bytes <= 0) return budget >= others;
  const Bytes extent = SmallArea::extent_bytes(budget, config_.small_bytes, config_.alignment);
  return extent * 4 <= budget && small_bytes <= extent && budget - extent >= others;
}

// In a smaller one there are several. The end of an extent may be too small for the next value; and
// what lies where an extent goes is moved, and has to have room for that.
bool Needed::suffices_with_more(Bytes budget, Bytes others, Bytes small_bytes) const {
  const Bytes extent = SmallArea::extent_bytes(budget, config_.small_bytes, config_.alignment);
  const Bytes used = std::max(extent - config_.small_bytes, extent / 2);
  const Bytes extents = (small_bytes + used - 1) / used * extent;
  return extent * 4 <= budget && budget - extents - extent - 2 * largest_ >= others;
}

namespace {

// The least multiple of `unit` of which `f` is true; it is of all above it, but for rounding.
template <typename F>
Bytes least_of(Bytes unit, F&& f) {
  Bytes low = 0;
  Bytes high = 1;
  while (!f(high * unit)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const Bytes half = low + (high - low) / 2;
    (f(half * unit) ? high : low) = half;
  }
  return high * unit;
}

}  // namespace

Needed::Answer Needed::answer(const Arena& arena, const SmallArea& small, bool evicted) const {
  const Bytes reach = (is_on() ? *arena_ : arena).reach();
  const Bytes others = std::max(most_, reach - num_extents_ * extent_bytes_);
  Bytes small_bytes = most_extents_ * extent_bytes_;
  if (most_extents_ == 1) small_bytes = small.extents().front()->reach();
  small_bytes += most_stray_bytes_;
  // What was dead when it was evicted may have lived a little longer with room.
  if (evicted) small_bytes += 2 * config_.small_bytes;
  Bytes result = kNoLimit;
  // No extent is larger than that of the largest budget.
  const Bytes largest = SmallArea::extent_bytes(kNoLimit, config_.small_bytes, config_.alignment);
  if (config_.small_bytes <= 0 || small_bytes <= largest) {
    result = least_of(config_.alignment,
                      [&](Bytes budget) { return suffices(budget, others, small_bytes); });
  }
  bool is_estimate = is_other_program_ || !config_.partition || most_extents_ > 1;
  if (config_.small_bytes > 0) {
    const Bytes with_more = least_of(config_.alignment, [&](Bytes budget) {
      return suffices_with_more(budget, others, small_bytes);
    });
    is_estimate |= with_more < result;
    result = std::min(result, with_more);
  }
  // What has passed has passed.
  if (!evicted && result >= config_.budget) return {config_.budget, /*is_estimate=*/false};
  return {result, is_estimate};
}

}  // namespace coop
