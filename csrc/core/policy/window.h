// Windows and how they are compared.
#pragma once

#include <cstdint>

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
  bool contains(Bytes offset) const { return offset >= begin && offset < end; }
  bool operator==(const Window& other) const = default;
};

// What windows are compared by: the less, the cheaper. With `excess`, bytes beyond those asked for
// are worth something, because the next request finds them free: score / sqrt(room) is compared
// (decision 0004).
inline double window_key(uint64_t score, Bytes room, bool excess) {
  const auto sum = static_cast<double>(static_cast<int64_t>(score));
  return excess ? sum * sum / static_cast<double>(room) : sum;
}

}  // namespace coop
