#include "core/space/block_map.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/check.h"

namespace coop {

BlockMap::BlockMap(Bytes begin, Bytes end) {
  auto chunk = std::make_unique<Chunk>();
  chunk->count = 1;
  chunk->num_candidates = 1;
  write(*chunk, 0, {begin, end - begin});
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
  const Position position = find_containing(offset);
  COOP_DEBUG_ASSERT(at(position).offset == offset);
  return position;
}

BlockMap::Position BlockMap::find_containing(Bytes offset) const {
  const int index = last_not_after(directory_.data(), num_chunks(), offset,
                                   [](const Entry& entry) { return entry.first; });
  const Chunk& chunk = *directory_[index].chunk;
  const int slot =
      last_not_after(chunk.offsets, chunk.count, offset, [](Bytes first) { return first; });
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
      if (!chunk.is_free(i) || chunk.bytes[i] < bytes) continue;
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
      if (!chunk.is_free(i)) continue;
      largest = std::max(largest, chunk.bytes[i]);
      if (chunk.bytes[i] < bytes || chunk.bytes[i] >= best) continue;
      best = chunk.bytes[i];
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
    if (chunk.is_free(i)) largest = std::max(largest, chunk.bytes[i]);
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
  const Block block = at(position);
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
  ++position.slot;
  copy(chunk, position.slot, chunk.count, chunk, position.slot + 1);
  write(chunk, position.slot, block);
  ++chunk.count;
  chunk.num_candidates += block.cost != kBarrier;
  ++size_;
  raise_bound(position);
}

void BlockMap::erase(Position position) {
  Chunk& chunk = *directory_[position.chunk].chunk;
  chunk.num_candidates -= chunk.costs[position.slot] != kBarrier;
  copy(chunk, position.slot + 1, chunk.count, chunk, position.slot);
  --chunk.count;
  --size_;
  if (chunk.count == 0) {
    directory_.erase(directory_.begin() + position.chunk);
    return;
  }
  if (position.slot == 0) directory_[position.chunk].first = chunk.offsets[0];
  // Sparse chunks would turn a walk over arrays into a walk over pointers.
  if (position.chunk > 0) {
    merge_if_sparse(position.chunk - 1);
  } else if (num_chunks() > 1) {
    merge_if_sparse(0);
  }
}

void BlockMap::put(Position position, const Block& block) {
  Entry& entry = directory_[position.chunk];
  set_cost(position, block.cost);
  write(*entry.chunk, position.slot, block);
  if (position.slot == 0) entry.first = block.offset;
  raise_bound(position);
}

void BlockMap::write(Chunk& chunk, int slot, const Block& block) {
  chunk.offsets[slot] = block.offset;
  chunk.bytes[slot] = block.bytes;
  chunk.costs[slot] = block.cost;
  chunk.last_accesses[slot] = block.last_access;
  chunk.values[slot] = block.value;
}

// Blocks [first, last) of one chunk to `slot` of another, or of the same.
void BlockMap::copy(const Chunk& from, int first, int last, Chunk& to, int slot) {
  auto copy_array = [&](const auto* source, auto* target) {
    std::memmove(target + slot, source + first,
                 static_cast<size_t>(last - first) * sizeof(*source));
  };
  copy_array(from.offsets, to.offsets);
  copy_array(from.bytes, to.bytes);
  copy_array(from.costs, to.costs);
  copy_array(from.last_accesses, to.last_accesses);
  copy_array(from.values, to.values);
}

void BlockMap::merge_if_sparse(int index) {
  Chunk& lower = *directory_[index].chunk;
  Chunk& upper = *directory_[index + 1].chunk;
  if (lower.count + upper.count > kChunkBlocks / 2) return;
  copy(upper, 0, upper.count, lower, lower.count);
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
  copy(chunk, half, chunk.count, *upper, 0);
  for (int i = 0; i < upper->count; ++i) upper->num_candidates += upper->costs[i] != kBarrier;
  chunk.count = half;
  chunk.num_candidates -= upper->num_candidates;
  const Bytes first = upper->offsets[0];
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
    if (entry.first != chunk.offsets[0]) return false;
    int candidates = 0;
    for (int i = 0; i < chunk.count; ++i) {
      const Block block = chunk.block(i);
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
