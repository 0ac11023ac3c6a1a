#include "core/policy.h"

#include <limits>

namespace coop {

Window Search::cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess) {
  Window best;
  // score / sqrt(bytes) is compared as score^2 / bytes, without a root or a division.
  double best_score = std::numeric_limits<double>::infinity();
  double best_bytes = 1;
  // Where the blocks since the last barrier begin, and where the last one ends; blocks [low, high)
  // are the current window.
  edges_.resize(static_cast<size_t>(blocks.size()) + 1);
  Edge* const edges = edges_.data();
  size_t low = 0;
  size_t high = 0;
  uint64_t total = 0;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    if (chunk.num_candidates == 0) {
      low = high = 0;
      continue;
    }
    // On their own, so that the compiler divides for several blocks at once.
    double scores[BlockMap::kChunkBlocks];
    for (int i = 0; i < chunk.count; ++i) {
      scores[i] = score(chunk.costs[i], chunk.last_accesses[i], clock);
    }
    for (int i = 0; i < chunk.count; ++i) {
      if (chunk.costs[i] == kBarrier) {
        low = high = 0;
        continue;
      }
      if (high == 0) edges[0] = {chunk.offsets[i], total};
      total += static_cast<uint64_t>(static_cast<int64_t>(scores[i]));
      const Bytes end = chunk.offsets[i] + chunk.bytes[i];
      edges[++high] = {end, total};
      while (end - edges[low + 1].offset >= bytes) ++low;
      const Bytes window_bytes = end - edges[low].offset;
      if (window_bytes < bytes) continue;
      const uint64_t window_score = total - edges[low].total;
      const auto sum = static_cast<double>(static_cast<int64_t>(window_score));
      const double compared = excess ? sum * sum : sum;
      const double divisor = excess ? static_cast<double>(window_bytes) : 1.0;
      if (compared * best_bytes < best_score * divisor) {
        best_score = compared;
        best_bytes = divisor;
        best = {edges[low].offset, end, window_score};
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
  Block pending;  // free, or a candidate whose upper neighbour is not yet known
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
      const Block block = chunk.block(i);
      const Bytes free_bytes = count_free_neighbours && block.is_free() ? block.bytes : 0;
      if (!pending.is_free()) consider(pending, pending_free + free_bytes);
      pending = block.cost != kBarrier ? block : Block();
      pending_free = free_before;
      free_before = free_bytes;
    }
  }
  if (!pending.is_free()) consider(pending, pending_free);
  return best;
}

}  // namespace coop
