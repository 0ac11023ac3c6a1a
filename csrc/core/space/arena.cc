#include "core/space/arena.h"

#include <algorithm>

#include "core/check.h"

namespace coop {

Arena::Arena(Bytes begin, Bytes end, Bytes alignment, Fit fit)
    : begin_(begin),
      end_(end),
      alignment_(alignment),
      fit_(fit),
      middle_(begin),
      least_middle_(end - begin),
      blocks_(begin, end) {
  COOP_ASSERT(begin % alignment == 0 && end % alignment == 0 && begin < end);
}

Bytes Arena::place(Value* value, Bytes bytes, Side side) {
  COOP_DEBUG_ASSERT(bytes > 0 && bytes % alignment_ == 0);
  BlockMap::Position position;
  const bool found = fit_ == Fit::kBest ? blocks_.best_fit(bytes, &position)
                                        : blocks_.first_fit(bytes, side, &position);
  return found ? hold(position, value, bytes, side) : kNowhere;
}

void Arena::place_at(Value* value, Bytes offset, Bytes bytes) {
  const BlockMap::Position position = blocks_.find(offset);
  COOP_ASSERT(blocks_.at(position).offset == offset && blocks_.at(position).bytes >= bytes);
  hold(position, value, bytes, Side::kLeft);
}

Bytes Arena::place_at_end(Value* value, Bytes offset, Bytes bytes) {
  const BlockMap::Position position = blocks_.find(offset);
  COOP_ASSERT(blocks_.at(position).bytes >= bytes);
  return hold(position, value, bytes, Side::kRight);
}

bool Arena::place_inside(Value* value, Bytes offset, Bytes bytes) {
  if (offset < begin_ || offset + bytes > end_) return false;
  const BlockMap::Position position = blocks_.find_containing(offset);
  const Block free = blocks_.at(position);
  const Bytes free_end = free.offset + free.bytes;
  if (!free.is_free() || offset + bytes > free_end) return false;
  if (offset == free.offset) {
    hold(position, value, bytes, Side::kLeft);
    return true;
  }
  if (offset + bytes == free_end) {
    hold(position, value, bytes, Side::kRight);
    return true;
  }
  blocks_.put(position, {free.offset, offset - free.offset});
  blocks_.insert_after(position, {offset + bytes, free_end - offset - bytes});
  blocks_.insert_after(blocks_.find(free.offset), {offset, bytes, kBarrier, 0, value});
  held_ += bytes;
  if (held_ > peak_) peak_ = held_;
  if (free.offset <= middle_ && middle_ <= free_end) {
    const bool above = free_end - offset - bytes > offset - free.offset;
    middle_ = above ? std::max(middle_, offset + bytes) : std::min(middle_, offset);
    least_middle_ =
        std::min(least_middle_, std::max(free_end - offset - bytes, offset - free.offset));
  }
  return true;
}

// Gives an end of a free block to the value.
Bytes Arena::hold(BlockMap::Position position, Value* value, Bytes bytes, Side side) {
  const Block free = blocks_.at(position);
  COOP_DEBUG_ASSERT(free.is_free());
  const Bytes rest = free.bytes - bytes;
  Block held{free.offset, bytes, kBarrier, 0, value};
  if (rest > 0 && side == Side::kRight) {
    held.offset += rest;
    blocks_.put(position, {free.offset, rest});
    blocks_.insert_after(position, held);
  } else {
    blocks_.put(position, held);
    if (rest > 0) blocks_.insert_after(position, {free.offset + bytes, rest});
  }
  held_ += bytes;
  if (held_ > peak_) peak_ = held_;
  if (free.offset <= middle_ && middle_ <= free.offset + free.bytes) {
    least_middle_ = std::min(least_middle_, rest);
    middle_ = side == Side::kRight ? std::min(middle_, held.offset)
                                   : std::max(middle_, held.offset + bytes);
  }
  // The budget, in every build: a block lies inside the region, and all of them fit it.
  COOP_ASSERT(held.offset >= begin_ && held.offset + bytes <= end_ && held_ <= end_ - begin_);
  return held.offset;
}

void Arena::free(Bytes offset) {
  BlockMap::Position position = blocks_.find(offset);
  const Block block = blocks_.at(position);
  COOP_ASSERT(block.offset == offset && !block.is_free());
  held_ -= block.bytes;
  Bytes first = block.offset;
  Bytes bytes = block.bytes;

  const int num_chunks = blocks_.num_chunks();
  if (blocks_.has_next(position)) {
    const BlockMap::Position next = blocks_.next(position);
    const Block neighbour = blocks_.at(next);
    if (neighbour.is_free()) {
      bytes += neighbour.bytes;
      blocks_.erase(next);
      // The removal may have merged chunks.
      if (blocks_.num_chunks() != num_chunks) position = blocks_.find(first);
    }
  }
  if (blocks_.has_previous(position)) {
    const BlockMap::Position previous = blocks_.previous(position);
    const Block neighbour = blocks_.at(previous);
    if (neighbour.is_free()) {
      first = neighbour.offset;
      bytes += neighbour.bytes;
      blocks_.erase(position);
      position = blocks_.num_chunks() == num_chunks ? previous : blocks_.find(first);
    }
  }
  blocks_.put(position, {first, bytes});
}

// As if a held block at the end had been freed.
void Arena::grow(Bytes bytes) {
  COOP_ASSERT(bytes % alignment_ == 0);
  const int last = blocks_.num_chunks() - 1;
  BlockMap::Position position{last, blocks_.chunk(last).count - 1};
  const Block block = blocks_.at(position);
  if (block.is_free()) {
    blocks_.put(position, {block.offset, block.bytes + bytes});
  } else {
    blocks_.insert_after(position, {end_, bytes});
  }
  end_ += bytes;
  least_middle_ += bytes;
}

Bytes Arena::middle_bytes() const {
  const BlockMap::Position position = blocks_.find_containing(middle_);
  const Block block = blocks_.at(position);
  if (block.is_free()) return block.bytes;
  if (block.offset != middle_ || !blocks_.has_previous(position)) return 0;
  const Block below = blocks_.at(blocks_.previous(position));
  return below.is_free() ? below.bytes : 0;
}

Bytes Arena::take_reach() {
  const Bytes result = reach();
  least_middle_ = middle_bytes();
  return result;
}

void Arena::want_middle(Bytes bytes) {
  least_middle_ = std::min(least_middle_, middle_bytes() - bytes);
}

void Arena::hand_over(Bytes offset, Value* value) {
  const BlockMap::Position position = blocks_.find(offset);
  Block block = blocks_.at(position);
  COOP_ASSERT(block.offset == offset && !block.is_free());
  block.value = value;
  block.cost = kBarrier;
  blocks_.put(position, block);
}

bool Arena::is_valid() const {
  if (!blocks_.is_valid(begin_, end_)) return false;
  Bytes held = 0;
  for (int c = 0; c < blocks_.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks_.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      const Block block = chunk.block(i);
      if (block.offset % alignment_ != 0 || block.bytes % alignment_ != 0) return false;
      if (!block.is_free()) held += block.bytes;
    }
  }
  return held == held_ && held_ <= peak_ && peak_ <= end_ - begin_;
}

}  // namespace coop
