// Choosing what to evict. A policy looks at the blocks and decides; it never frees.
#pragma once

#include <cstdint>
#include <vector>

#include "core/block_map.h"
#include "core/types.h"

namespace coop {

// What a block costs to evict: cost / staleness in fixed point, so that a window's sum is exact
// and independent of the order of additions.
//
// The ratio is clamped to 2^20 and scaled by 2^32; a sum of up to 2048 blocks at the clamp fits.
constexpr uint64_t kOneScore = uint64_t{1} << 32;
inline uint64_t score(const Block& block, double clock) {
  constexpr double kLargest = 1048576.0;
  const double ratio = block.cost / (clock - block.last_access + 1.0);
  return static_cast<uint64_t>((ratio < kLargest ? ratio : kLargest) *
                               static_cast<double>(kOneScore));
}

// Consecutive blocks by address: [begin, end). Empty when nothing can be evicted.
struct Window {
  Bytes begin = 0;
  Bytes end = 0;
  uint64_t score = 0;
  bool empty() const { return end == begin; }
};

class Search {
 public:
  // The cheapest window of at least `bytes`: one pass, two pointers. Ties go to the lowest address.
  // Coop. With `excess`, bytes beyond those asked for are worth something, because the next request
  // finds them free: score / sqrt(bytes) is compared (decision 0004).
  Window cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess);

  // The block with the smallest cost / (bytes * staleness), DTR; with `count_free_neighbours` the
  // free bytes beside it count as its own, DTE. Ties go to the lowest address.
  Window cheapest_block(const BlockMap& blocks, bool count_free_neighbours, double clock) const;

  // The longest and the last run of blocks that are free or evictable (for messages).
  static void longest_windows(const BlockMap& blocks, Bytes* longest, Bytes* last);

 private:
  struct Item {
    Bytes offset;
    Bytes bytes;
    uint64_t score;
  };
  std::vector<Item> items_;  // scratch: the blocks since the last barrier
};

}  // namespace coop
