#include "core/policy.h"

#include <algorithm>
#include <limits>

namespace coop {

Window Search::cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess) {
  Window best;
  // score / sqrt(bytes) is compared as score^2 / bytes, without a root or a division.
  double best_score = std::numeric_limits<double>::infinity();
  double best_bytes = 1;
  items_.resize(static_cast<size_t>(blocks.size()));
  Item* const items = items_.data();
  size_t low = 0;
  size_t high = 0;  // items[low, high) is the current window
  Bytes window_bytes = 0;
  uint64_t window_score = 0;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    if (chunk.num_candidates == 0) {
      low = high = 0;
      window_bytes = 0;
      window_score = 0;
      continue;
    }
    for (int i = 0; i < chunk.count; ++i) {
      const Block& block = chunk.blocks[i];
      if (block.cost == kBarrier) {
        low = high = 0;
        window_bytes = 0;
        window_score = 0;
        continue;
      }
      const uint64_t block_score = score(block, clock);
      items[high++] = {block.offset, block.bytes, block_score};
      window_bytes += block.bytes;
      window_score += block_score;
      while (window_bytes - items[low].bytes >= bytes) {
        window_bytes -= items[low].bytes;
        window_score -= items[low].score;
        ++low;
      }
      if (window_bytes < bytes) continue;
      const auto sum = static_cast<double>(window_score);
      const double compared = excess ? sum * sum : sum;
      const double divisor = excess ? static_cast<double>(window_bytes) : 1.0;
      if (compared * best_bytes < best_score * divisor) {
        best_score = compared;
        best_bytes = divisor;
        best = {items[low].offset, block.offset + block.bytes, window_score};
      }
    }
  }
  return best;
}

Window Search::cheapest_block(const BlockMap& blocks, bool count_free_neighbours,
                              double clock) const {
  Window best;
  double best_score = std::numeric_limits<double>::infinity();
  Bytes free_before = 0;
  const Block* pending = nullptr;  // a candidate whose upper neighbour is not yet known
  auto consider = [&](const Block& block, Bytes free_bytes) {
    const double candidate = block.cost / ((clock - block.last_access + 1.0) *
                                           static_cast<double>(block.bytes + free_bytes));
    if (candidate < best_score) {
      best_score = candidate;
      best = {block.offset, block.offset + block.bytes, 0};
    }
  };
  Bytes pending_free = 0;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      const Block& block = chunk.blocks[i];
      const Bytes free_bytes = count_free_neighbours && block.is_free() ? block.bytes : 0;
      if (pending != nullptr) {
        consider(*pending, pending_free + free_bytes);
        pending = nullptr;
      }
      if (!block.is_free() && block.cost != kBarrier) {
        pending = &block;
        pending_free = free_before;
      }
      free_before = free_bytes;
    }
  }
  if (pending != nullptr) consider(*pending, pending_free);
  return best;
}

void Search::longest_windows(const BlockMap& blocks, Bytes* longest, Bytes* last) {
  *longest = 0;
  Bytes run = 0;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      run = chunk.blocks[i].cost == kBarrier ? 0 : run + chunk.blocks[i].bytes;
      *longest = std::max(*longest, run);
    }
  }
  *last = run;
}

}  // namespace coop
