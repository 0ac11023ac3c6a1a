#include "core/policy/search.h"

#include <cmath>

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
    // Both tests are unpredictable: they are combined into one branch.
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

Window find_cheapest(const SearchCosts& search_costs, Bytes bytes, bool excess, WindowEdge* edges,
                     Separate& separate) {
  constexpr double kFar = 16;
  const BlockMap& blocks = search_costs.blocks();
  const double clock = search_costs.clock();
  SearchCosts::Reader reader(search_costs);
  Window best;
  double best_key = kInfinity;
  // Blocks since the last barrier: the edges before them and after the last one. [low, high) are
  // the current window.
  size_t low = 0;
  size_t high = 0;
  Bytes room = 0;
  uint64_t total = 0;
  auto scan = [&](const BlockMap::Chunk& chunk, const auto& costs) __attribute__((always_inline)) {
    // On their own, so that the compiler divides for several blocks at once.
    double scores[BlockMap::kChunkBlocks];
    for (int i = 0; i < chunk.count; ++i) {
      scores[i] = score(std::abs(costs[i]), chunk.last_accesses[i], clock);
    }
    for (int i = 0; i < chunk.count; ++i) {
      if (costs[i] == kBarrier) {
        low = high = 0;
        continue;
      }
      const Bytes end = chunk.offsets[i] + chunk.bytes[i];
      if (high == 0) edges[0] = {chunk.offsets[i], room, total};
      room += costs[i] < 0 ? 0 : chunk.bytes[i];
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
  };
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    if (chunk.num_candidates == 0) {
      low = high = 0;
      continue;
    }
    // Compiled twice: costs that lie in the chunk need no register of their own.
    const Cost* costs = reader.chunk(c);
    if (costs == chunk.costs) [[likely]] {
      scan(chunk, chunk.costs);
    } else {
      scan(chunk, costs);
    }
  }
  return best;
}

}  // namespace

Window find_cheapest_window(const SearchCosts& costs, Bytes bytes, bool excess, bool rank,
                            SearchMemory& memory) {
  const auto num_blocks = static_cast<size_t>(costs.blocks().size());
  if (memory.edges.size() <= num_blocks) memory.edges.resize(2 * num_blocks);
  if (!rank) {
    Separate none(nullptr);
    return find_cheapest(costs, bytes, excess, memory.edges.data(), none);
  }
  if (memory.separate.size() < num_blocks) memory.separate.resize(2 * num_blocks);
  Separate separate(memory.separate.data());
  const Window best = find_cheapest(costs, bytes, excess, memory.edges.data(), separate);
  memory.num_separate = separate.size();
  return best;
}

Window find_cheapest_value(const SearchCosts& costs, bool count_free_neighbours) {
  const double clock = costs.clock();
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
  costs.for_each([&](const Block& block) {
    const Bytes free_bytes = count_free_neighbours && block.is_free() ? block.bytes : 0;
    if (!pending.is_free()) consider(pending, pending_free + free_bytes);
    pending = block.cost != kBarrier ? block : Block();
    pending_free = free_before;
    free_before = free_bytes;
  });
  if (!pending.is_free()) consider(pending, pending_free);
  return best;
}

}  // namespace coop
