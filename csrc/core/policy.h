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
  bool contains(Bytes offset) const { return offset >= begin && offset < end; }
  bool operator==(const Window& other) const = default;
};

// What windows are compared by: the less, the cheaper.
double window_key(uint64_t score, Bytes room, bool excess);

// Where a block ends and the next one begins.
struct WindowEdge {
  Bytes offset;
  Bytes room;      // bytes of the blocks before it that are free or evicted
  uint64_t total;  // scores of the blocks before it, modulo 2^64: the difference of two is exact
};

struct RankedWindow {
  double key;
  Bytes begin;
  Bytes end;
  Value* only;  // whose block it was, if it was one block, and not free
};

// Windows that a search found besides the cheapest one. Scores change meanwhile, so one is scored
// again before it is taken.
struct RunnersUp {
  Bytes bytes = 0;  // that were asked for
  double most_key;  // dearer ones are not taken: a search might find a cheaper one
  std::vector<RankedWindow> windows;  // the cheapest last; none overlaps another

  void put_back(const RankedWindow& ranked);
};

class Search {
 public:
  // In a smaller map a search takes less time than what is remembered would save.
  static constexpr int64_t kManyBlocks = 512;

  explicit Search(bool remembers = false) : remembers_(remembers) {}

  // The cheapest window with room for at least `bytes`: two pointers over all blocks. Ties go to
  // the lowest address. Coop. What is moved and not evicted is no room. With `excess`, bytes beyond
  // those asked for are worth something, because the next request finds them free: score /
  // sqrt(room) is compared (decision 0004).
  // Where there are many blocks, others are remembered, unless not wanted.
  Window cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess,
                         bool remember = true);
  // What is left of those that the last searches for so many bytes have found besides; null: none.
  RunnersUp* runners_up(Bytes bytes);
  void forget(Bytes bytes);

  // The block with the smallest cost / (bytes * staleness), DTR; with `count_free_neighbours` the
  // free bytes beside it count as its own, DTE. Ties go to the lowest address.
  Window cheapest_block(const BlockMap& blocks, bool count_free_neighbours, double clock) const;

 private:
  struct Rank {
    double key;
    size_t index;  // in separate_
  };

  void keep_runners_up(Bytes bytes, const Window& best, size_t num_separate);

  const bool remembers_;
  std::vector<WindowEdge> edges_;  // scratch, as the next two
  std::vector<RankedWindow> separate_;
  std::vector<Rank> ranks_;
  RunnersUp runners_up_[2];
  int last_ = 0;
};

}  // namespace coop
