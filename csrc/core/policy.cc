#include "core/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coop {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12;  // more than a product with an inverse is off

// Both fit the signed type, to and from which the processor converts in one instruction.
uint64_t whole(double score) { return static_cast<uint64_t>(static_cast<int64_t>(score)); }

// What windows are compared by, their key, is power / divisor.
double power(uint64_t score, bool excess) {
  const auto sum = static_cast<double>(static_cast<int64_t>(score));
  return excess ? sum * sum : sum;
}
double divisor(Bytes room, bool excess) { return excess ? static_cast<double>(room) : 1.0; }

// Windows that do not overlap: of those that do, the cheapest. They come in order of their ends.
void add_separate(const RankedWindow& ranked, std::vector<RankedWindow>* windows) {
  if (windows->empty() || windows->back().window.end <= ranked.window.begin) {
    windows->push_back(ranked);
  } else if (ranked.key < windows->back().key) {
    windows->back() = ranked;
  }
}

// Two pointers over all blocks. With `separate`, lists windows that do not overlap, too.
Window find_cheapest(const BlockMap& blocks, Bytes bytes, double clock, bool excess,
                     WindowEdge* edges, std::vector<RankedWindow>* separate) {
  Window best;
  double best_key = kInfinity;
  double best_at_most = kInfinity;  // the same, for what was not divided exactly
  // Blocks since the last barrier: the edges before them and after the last one. [low, high) are
  // the current window.
  size_t low = 0;
  size_t high = 0;
  Bytes room = 0;
  uint64_t total = 0;
  Bytes inverse_of = 0;
  double inverse = 0;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    if (chunk.num_candidates == 0) {
      low = high = 0;
      continue;
    }
    // On their own, so that the compiler divides for several blocks at once.
    double scores[BlockMap::kChunkBlocks];
    for (int i = 0; i < chunk.count; ++i) {
      scores[i] = score(std::abs(chunk.costs[i]), chunk.last_accesses[i], clock);
    }
    for (int i = 0; i < chunk.count; ++i) {
      if (chunk.costs[i] == kBarrier) {
        low = high = 0;
        continue;
      }
      const Bytes end = chunk.offsets[i] + chunk.bytes[i];
      if (high == 0) edges[0] = {chunk.offsets[i], room, total};
      room += chunk.costs[i] < 0 ? 0 : chunk.bytes[i];
      total += whole(scores[i]);
      edges[++high] = {end, room, total};
      while (room - edges[low + 1].room >= bytes) ++low;
      const WindowEdge& begin = edges[low];
      const Bytes window_room = room - begin.room;
      if (window_room < bytes) continue;
      if (window_room != inverse_of) {  // most are as large as the last one
        inverse_of = window_room;
        inverse = 1 / divisor(window_room, excess);
      }
      const double window_power = power(total - begin.total, excess);
      const Window window{begin.offset, end, total - begin.total};
      if (separate != nullptr) add_separate({window, window_power * inverse}, separate);
      if (window_power * inverse > best_at_most) [[likely]]
        continue;
      const double key = window_power / divisor(window_room, excess);
      if (key >= best_key) continue;
      best_key = key;
      best_at_most = key * (1 + kRounding);
      best = window;
    }
  }
  return best;
}

}  // namespace

double window_key(uint64_t score, Bytes room, bool excess) {
  return power(score, excess) / divisor(room, excess);
}

Window Search::cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess) {
  edges_.resize(static_cast<size_t>(blocks.size()) + 1);
  if (!remembers_ || blocks.size() < kManyBlocks) {
    return find_cheapest(blocks, bytes, clock, excess, edges_.data(), nullptr);
  }
  constexpr size_t kMost = 64;
  constexpr double kTolerance = 4;  // of a key; with excess, twice the score
  // Not the one of the size that was asked for last: two sizes often take turns.
  if (runners_up_[last_].bytes != bytes) last_ = 1 - last_;
  RunnersUp& found = runners_up_[last_];
  found.bytes = bytes;
  std::vector<RankedWindow>& windows = found.windows;
  windows.clear();
  const Window best = find_cheapest(blocks, bytes, clock, excess, edges_.data(), &windows);
  auto cheaper = [](const RankedWindow& a, const RankedWindow& b) { return a.key < b.key; };
  if (windows.size() > kMost) {
    std::nth_element(windows.begin(), windows.begin() + kMost, windows.end(), cheaper);
    windows.resize(kMost);
  }
  std::sort(windows.rbegin(), windows.rend(), cheaper);
  if (windows.empty()) return best;
  found.most_key = std::min(windows.front().key, windows.back().key * kTolerance);
  std::erase_if(windows, [&](const RankedWindow& each) {
    return each.window.begin < best.end && each.window.end > best.begin;
  });
  return best;
}

RunnersUp* Search::runners_up(Bytes bytes) {
  for (RunnersUp& each : runners_up_) {
    if (each.bytes == bytes && !each.windows.empty()) return &each;
  }
  return nullptr;
}

void RunnersUp::put_back(const RankedWindow& ranked) {
  const auto dearer = [](const RankedWindow& a, const RankedWindow& b) { return a.key > b.key; };
  windows.insert(std::upper_bound(windows.begin(), windows.end(), ranked, dearer), ranked);
}

Window Search::cheapest_block(const BlockMap& blocks, bool count_free_neighbours,
                              double clock) const {
  Window best;
  double best_score = kInfinity;
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
