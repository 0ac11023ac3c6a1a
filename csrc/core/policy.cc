#include "core/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coop {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Both fit the signed type, to and from which the processor converts in one instruction.
uint64_t whole(double score) { return static_cast<uint64_t>(static_cast<int64_t>(score)); }

// Windows that do not overlap: of those that do, the cheapest. They come in order of their ends.
class Separate {
 public:
  explicit Separate(RankedWindow* windows) : windows_(windows) {}

  void add(const RankedWindow& ranked) {
    if (windows_ == nullptr) return;
    // Nobody can foresee either of them, so they are one branch.
    const bool apart = ranked.begin >= last_end_;
    const bool cheaper = ranked.key < last_key_;
    if (!(apart | cheaper)) return;
    size_ += apart;
    windows_[size_ - 1] = ranked;
    last_end_ = ranked.end;
    last_key_ = ranked.key;
  }
  size_t size() const { return size_; }

 private:
  RankedWindow* windows_;  // null: they are not wanted
  size_t size_ = 0;
  Bytes last_end_ = std::numeric_limits<Bytes>::min();
  double last_key_ = 0;
};

// Two pointers over all blocks.
Window find_cheapest(const BlockMap& blocks, Bytes bytes, double clock, bool excess,
                     WindowEdge* edges, Separate& separate) {
  constexpr double kFar = 16;
  Window best;
  double best_key = kInfinity;
  // Blocks since the last barrier: the edges before them and after the last one. [low, high) are
  // the current window.
  size_t low = 0;
  size_t high = 0;
  Bytes room = 0;
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
      const double key = window_key(total - begin.total, window_room, excess);
      if (key > best_key * kFar) continue;  // hardly taken before the next search
      separate.add({key, begin.offset, end, low + 1 == high ? chunk.values[i] : nullptr});
      if (key >= best_key) [[likely]]
        continue;
      best_key = key;
      best = {begin.offset, end, total - begin.total};
    }
  }
  return best;
}

}  // namespace

double window_key(uint64_t score, Bytes room, bool excess) {
  const auto sum = static_cast<double>(static_cast<int64_t>(score));
  return excess ? sum * sum / static_cast<double>(room) : sum;
}

Window Search::cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess,
                               bool remember) {
  const auto num_blocks = static_cast<size_t>(blocks.size());
  if (edges_.size() <= num_blocks) edges_.resize(2 * num_blocks);
  if (!remember || !remembers_ || blocks.size() < kManyBlocks) {
    Separate none(nullptr);
    return find_cheapest(blocks, bytes, clock, excess, edges_.data(), none);
  }
  if (separate_.size() < num_blocks) separate_.resize(2 * num_blocks);
  Separate separate(separate_.data());
  const Window best = find_cheapest(blocks, bytes, clock, excess, edges_.data(), separate);
  keep_runners_up(bytes, best, separate.size());
  return best;
}

// The cheapest of the separate windows.
void Search::keep_runners_up(Bytes bytes, const Window& best, size_t num_separate) {
  constexpr size_t kMost = 64;
  constexpr double kTolerance = 8;  // of a key; with excess, 2.8 times the score
  // Not the one of the size that was asked for last: two sizes often take turns.
  if (runners_up_[last_].bytes != bytes) last_ = 1 - last_;
  RunnersUp& found = runners_up_[last_];
  found.bytes = bytes;
  // What is moved about while they are ordered is small.
  auto cheaper = [](const Rank& a, const Rank& b) { return a.key < b.key; };
  ranks_.clear();
  for (size_t i = 0; i < num_separate; ++i) ranks_.push_back({separate_[i].key, i});
  if (num_separate > kMost) {
    std::nth_element(ranks_.begin(), ranks_.begin() + kMost, ranks_.end(), cheaper);
    ranks_.resize(kMost);
  }
  std::sort(ranks_.rbegin(), ranks_.rend(), cheaper);
  std::vector<RankedWindow>& windows = found.windows;
  windows.clear();
  for (const Rank& rank : ranks_) windows.push_back(separate_[rank.index]);
  if (windows.empty()) return;
  found.most_key = std::min(windows.front().key, windows.back().key * kTolerance);
  std::erase_if(windows, [&](const RankedWindow& each) {
    return each.begin < best.end && each.end > best.begin;
  });
}

RunnersUp* Search::runners_up(Bytes bytes) {
  for (RunnersUp& each : runners_up_) {
    if (each.bytes == bytes && !each.windows.empty()) return &each;
  }
  return nullptr;
}

void Search::forget(Bytes bytes) {
  if (RunnersUp* known = runners_up(bytes)) known->windows.clear();
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
