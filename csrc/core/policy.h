// Choosing what to evict. A policy looks at the blocks and decides; it never frees.
#pragma once

#include <cstdint>
#include <vector>

#include "core/block_map.h"
#include "core/types.h"

namespace coop {

// What a block costs to evict: cost / staleness, of which the whole part is summed, so that a
// window's sum is exact and independent of the order of additions.
//
// The ratio is scaled by 2^32 and clamped to 2^52; a window of up to 2047 blocks at the clamp fits.
constexpr uint64_t kOneScore = uint64_t{1} << 32;
inline double score(Cost cost, double last_access, double clock) {
  constexpr auto kScale = static_cast<double>(kOneScore);
  constexpr double kLargest = 4503599627370496.0;
  const double scaled = cost / (clock - last_access + 1.0) * kScale;
  return scaled < kLargest ? scaled : kLargest;
}

// Consecutive blocks by address: [begin, end). Empty when nothing can be evicted.
struct Window {
  Bytes begin = 0;
  Bytes end = 0;
  uint64_t score = 0;
  bool empty() const { return end == begin; }
  bool operator==(const Window& other) const = default;
};

// Where a block ends and the next one begins.
struct WindowEdge {
  Bytes offset;
  uint64_t total;  // scores of the blocks before it, modulo 2^64: the difference of two is exact
  uint64_t later;  // the same as they will be
};

class Search {
 public:
  // The cheapest window of at least `bytes`: two pointers, over the chunks where it may be
  // (decision 0005). Ties go to the lowest address. Coop. With `excess`, bytes beyond those asked
  // for are worth something, because the next request finds them free: score / sqrt(bytes) is
  // compared (decision 0004).
  Window cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess);

  // The block with the smallest cost / (bytes * staleness), DTR; with `count_free_neighbours` the
  // free bytes beside it count as its own, DTE. Ties go to the lowest address.
  Window cheapest_block(const BlockMap& blocks, bool count_free_neighbours, double clock) const;

 private:
  std::vector<WindowEdge> edges_;  // scratch
  Bytes last_bytes_ = 0;
  double last_clock_ = 0;
  double advance_ = 0;  // of the clock from search to search, on average
  int slot_ = 0;        // of Chunk::seen: searches of two sizes often take turns
};

}  // namespace coop
