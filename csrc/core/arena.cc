#include "core/arena.h"

#include <limits>

#include "core/check.h"

namespace coop {

Arena::Arena(Bytes begin, Bytes end, Bytes alignment)
    : begin_(begin), end_(end), alignment_(alignment), blocks_(begin, end), free_(&pool_) {
  COOP_ASSERT(begin % alignment == 0 && end % alignment == 0 && begin < end);
  free_.insert({end - begin, begin});
}

Bytes Arena::place(Value* value, Bytes bytes, Side side) {
  COOP_DEBUG_ASSERT(bytes > 0 && bytes % alignment_ == 0);
  auto best = free_.lower_bound({bytes, std::numeric_limits<Bytes>::min()});
  if (best == free_.end()) return kNowhere;
  if (side == Side::kRight) {
    best = std::prev(free_.upper_bound({best->first, std::numeric_limits<Bytes>::max()}));
  }
  const auto [available, start] = *best;
  auto node = free_.extract(best);
  const Bytes rest = available - bytes;
  const BlockMap::Position position = blocks_.find(start);
  Block held{start, bytes, kBarrier, 0, value};
  if (rest == 0) {
    Block& block = blocks_.at(position);
    block.value = value;
    block.last_access = 0;
    blocks_.set_cost(position, kBarrier);
  } else if (side == Side::kLeft) {
    blocks_.at(position).value = value;
    blocks_.at(position).last_access = 0;
    blocks_.set_cost(position, kBarrier);
    blocks_.set_range(position, start, bytes);
    blocks_.insert_after(position, Block{start + bytes, rest, 0, 0, nullptr});
    node.value() = {rest, start + bytes};
    free_.insert(std::move(node));
  } else {
    held.offset = start + rest;
    blocks_.set_range(position, start, rest);
    blocks_.insert_after(position, held);
    node.value() = {rest, start};
    free_.insert(std::move(node));
  }
  held_ += bytes;
  if (held_ > peak_) peak_ = held_;
  COOP_DEBUG_ASSERT(held_ <= end_ - begin_);
  return held.offset;
}

void Arena::free(Bytes offset) {
  BlockMap::Position position = blocks_.find(offset);
  Block& block = blocks_.at(position);
  COOP_ASSERT(block.offset == offset && !block.is_free());
  held_ -= block.bytes;
  Bytes first = block.offset;
  Bytes bytes = block.bytes;
  block.value = nullptr;
  blocks_.set_cost(position, 0);

  if (blocks_.has_next(position)) {
    const BlockMap::Position next = blocks_.next(position);
    const Block& neighbour = blocks_.at(next);
    if (neighbour.is_free()) {
      free_.erase({neighbour.bytes, neighbour.offset});
      bytes += neighbour.bytes;
      blocks_.erase(next);
      // The chunks may have been merged by the removal.
      position = blocks_.find(first);
    }
  }
  if (blocks_.has_previous(position)) {
    const BlockMap::Position previous = blocks_.previous(position);
    const Block& neighbour = blocks_.at(previous);
    if (neighbour.is_free()) {
      free_.erase({neighbour.bytes, neighbour.offset});
      first = neighbour.offset;
      bytes += neighbour.bytes;
      blocks_.erase(position);
      position = blocks_.find(first);
    }
  }
  blocks_.set_range(position, first, bytes);
  free_.insert({bytes, first});
}

void Arena::hand_over(Bytes offset, Value* value) {
  const BlockMap::Position position = blocks_.find(offset);
  COOP_ASSERT(blocks_.at(position).offset == offset && !blocks_.at(position).is_free());
  blocks_.at(position).value = value;
  blocks_.set_cost(position, kBarrier);
}

bool Arena::is_valid() const {
  if (!blocks_.is_valid(begin_, end_)) return false;
  Bytes held = 0;
  size_t num_free = 0;
  for (int c = 0; c < blocks_.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks_.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      const Block& block = chunk.blocks[i];
      if (block.offset % alignment_ != 0 || block.bytes % alignment_ != 0) return false;
      if (block.is_free()) {
        ++num_free;
        if (free_.count({block.bytes, block.offset}) != 1) return false;
      } else {
        held += block.bytes;
      }
    }
  }
  return num_free == free_.size() && held == held_ && held_ <= peak_ && peak_ <= end_ - begin_;
}

}  // namespace coop
