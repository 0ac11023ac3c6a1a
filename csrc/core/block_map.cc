#include "core/block_map.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace coop {

BlockMap::BlockMap(Bytes begin, Bytes end) {
  auto chunk = std::make_unique<Chunk>();
  chunk->count = 1;
  chunk->num_candidates = 1;
  chunk->blocks[0].offset = begin;
  chunk->blocks[0].bytes = end - begin;
  directory_.push_back({begin, end - begin, std::move(chunk)});
  size_ = 1;
}

namespace {

// The last of `count` ordered items whose offset is not after `offset`. Without a branch that
// depends on them: half of the time it would be foreseen wrongly.
template <typename Item, typename F>
int last_not_after(const Item* items, int count, Bytes offset, F&& offset_of) {
  const Item* first = items;
  while (count > 1) {
    const int half = count / 2;
    first += offset_of(first[half]) <= offset ? half : 0;
    count -= half;
  }
  return static_cast<int>(first - items);
}

}  // namespace

BlockMap::Position BlockMap::find(Bytes offset) const {
  const int index = last_not_after(directory_.data(), num_chunks(), offset,
                                   [](const Entry& entry) { return entry.first; });
  const Chunk& chunk = *directory_[index].chunk;
  const int slot = last_not_after(chunk.blocks, chunk.count, offset,
                                  [](const Block& block) { return block.offset; });
  COOP_DEBUG_ASSERT(chunk.blocks[slot].offset == offset);
  return {index, slot};
}

bool BlockMap::first_fit(Bytes bytes, Side side, Position* found) {
  const int num_chunks = this->num_chunks();
  for (int k = 0; k < num_chunks; ++k) {
    const int c = side == Side::kLeft ? k : num_chunks - 1 - k;
    if (directory_[c].free_bound < bytes) continue;
    const Chunk& chunk = *directory_[c].chunk;
    for (int j = 0; j < chunk.count; ++j) {
      const int i = side == Side::kLeft ? j : chunk.count - 1 - j;
      if (!chunk.blocks[i].is_free() || chunk.blocks[i].bytes < bytes) continue;
      *found = {c, i};
      return true;
    }
    directory_[c].free_bound = largest_free_of(c);
  }
  return false;
}

bool BlockMap::best_fit(Bytes bytes, Position* found) {
  Bytes best = std::numeric_limits<Bytes>::max();
  for (int c = 0; c < num_chunks(); ++c) {
    if (directory_[c].free_bound < bytes) continue;
    const Chunk& chunk = *directory_[c].chunk;
    Bytes largest = 0;
    for (int i = 0; i < chunk.count; ++i) {
      const Block& block = chunk.blocks[i];
      if (!block.is_free()) continue;
      largest = std::max(largest, block.bytes);
      if (block.bytes < bytes || block.bytes >= best) continue;
      best = block.bytes;
      *found = {c, i};
      if (best == bytes) return true;  // none is smaller, none of its size is lower
    }
    directory_[c].free_bound = largest;
  }
  return best < std::numeric_limits<Bytes>::max();
}

Bytes BlockMap::largest_free_of(int index) const {
  Bytes largest = 0;
  const Chunk& chunk = *directory_[index].chunk;
  for (int i = 0; i < chunk.count; ++i) {
    if (chunk.blocks[i].is_free()) largest = std::max(largest, chunk.blocks[i].bytes);
  }
  return largest;
}

Bytes BlockMap::largest_free() const {
  Bytes largest = 0;
  for (int c = 0; c < num_chunks(); ++c) {
    if (directory_[c].free_bound > largest) largest = std::max(largest, largest_free_of(c));
  }
  return largest;
}

void BlockMap::raise_bound(Position position) {
  const Block& block = at(position);
  Bytes& bound = directory_[position.chunk].free_bound;
  if (block.is_free() && block.bytes > bound) bound = block.bytes;
}

bool BlockMap::has_next(Position position) const {
  return position.slot + 1 < directory_[position.chunk].chunk->count ||
         position.chunk + 1 < num_chunks();
}

bool BlockMap::has_previous(Position position) const {
  return position.slot > 0 || position.chunk > 0;
}

BlockMap::Position BlockMap::next(Position position) const {
  if (position.slot + 1 < directory_[position.chunk].chunk->count) {
    return {position.chunk, position.slot + 1};
  }
  return {position.chunk + 1, 0};
}

BlockMap::Position BlockMap::previous(Position position) const {
  if (position.slot > 0) return {position.chunk, position.slot - 1};
  return {position.chunk - 1, directory_[position.chunk - 1].chunk->count - 1};
}

void BlockMap::insert_after(Position position, const Block& block) {
  if (directory_[position.chunk].chunk->count == kChunkBlocks) {
    split(position.chunk);
    const int half = directory_[position.chunk].chunk->count;
    if (position.slot >= half) position = {position.chunk + 1, position.slot - half};
  }
  Chunk& chunk = *directory_[position.chunk].chunk;
  Block* slot = chunk.blocks + position.slot + 1;
  std::copy_backward(slot, chunk.blocks + chunk.count, chunk.blocks + chunk.count + 1);
  *slot = block;
  ++chunk.count;
  chunk.num_candidates += block.cost != kBarrier;
  ++size_;
  raise_bound({position.chunk, position.slot + 1});
}

void BlockMap::erase(Position position) {
  Chunk& chunk = *directory_[position.chunk].chunk;
  chunk.num_candidates -= chunk.blocks[position.slot].cost != kBarrier;
  std::copy(chunk.blocks + position.slot + 1, chunk.blocks + chunk.count,
            chunk.blocks + position.slot);
  --chunk.count;
  --size_;
  if (chunk.count == 0) {
    directory_.erase(directory_.begin() + position.chunk);
    return;
  }
  if (position.slot == 0) directory_[position.chunk].first = chunk.blocks[0].offset;
  // Sparse chunks would turn a walk over arrays into a walk over pointers.
  if (position.chunk > 0) {
    merge_if_sparse(position.chunk - 1);
  } else if (num_chunks() > 1) {
    merge_if_sparse(0);
  }
}

void BlockMap::set_cost(Position position, Cost cost) {
  Chunk& chunk = *directory_[position.chunk].chunk;
  Block& block = chunk.blocks[position.slot];
  chunk.num_candidates += (cost != kBarrier) - (block.cost != kBarrier);
  block.cost = cost;
}

void BlockMap::set_range(Position position, Bytes offset, Bytes bytes) {
  Block& block = at(position);
  block.offset = offset;
  block.bytes = bytes;
  if (position.slot == 0) directory_[position.chunk].first = offset;
  raise_bound(position);
}

void BlockMap::merge_if_sparse(int index) {
  Chunk& lower = *directory_[index].chunk;
  Chunk& upper = *directory_[index + 1].chunk;
  if (lower.count + upper.count > kChunkBlocks / 2) return;
  std::copy(upper.blocks, upper.blocks + upper.count, lower.blocks + lower.count);
  lower.count += upper.count;
  lower.num_candidates += upper.num_candidates;
  directory_[index].free_bound =
      std::max(directory_[index].free_bound, directory_[index + 1].free_bound);
  directory_.erase(directory_.begin() + index + 1);
}

void BlockMap::split(int index) {
  Chunk& chunk = *directory_[index].chunk;
  auto upper = std::make_unique<Chunk>();
  const int half = chunk.count / 2;
  upper->count = chunk.count - half;
  std::copy(chunk.blocks + half, chunk.blocks + chunk.count, upper->blocks);
  for (int i = 0; i < upper->count; ++i) {
    upper->num_candidates += upper->blocks[i].cost != kBarrier;
  }
  chunk.count = half;
  chunk.num_candidates -= upper->num_candidates;
  const Bytes first = upper->blocks[0].offset;
  const Bytes bound = directory_[index].free_bound;
  directory_.insert(directory_.begin() + index + 1, Entry{first, bound, std::move(upper)});
}

bool BlockMap::is_valid(Bytes begin, Bytes end) const {
  Bytes offset = begin;
  bool previous_free = false;
  int64_t blocks = 0;
  for (const Entry& entry : directory_) {
    const Chunk& chunk = *entry.chunk;
    if (chunk.count <= 0 || chunk.count > kChunkBlocks) return false;
    if (entry.first != chunk.blocks[0].offset) return false;
    int candidates = 0;
    for (int i = 0; i < chunk.count; ++i) {
      const Block& block = chunk.blocks[i];
      if (block.offset != offset || block.bytes <= 0) return false;
      if (block.is_free() && (previous_free || block.cost != 0)) return false;
      if (block.is_free() && block.bytes > entry.free_bound) return false;
      previous_free = block.is_free();
      candidates += block.cost != kBarrier;
      offset += block.bytes;
      ++blocks;
    }
    if (candidates != chunk.num_candidates) return false;
  }
  return offset == end && blocks == size_;
}

}  // namespace coop
