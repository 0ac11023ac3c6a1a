#include "core/policy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace coop {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12;  // more than a product with an inverse is off

// One search for a window.
class Pass {
 public:
  Pass(const BlockMap& blocks, Bytes bytes, bool excess, double clock, double until, int slot,
       std::vector<WindowEdge>* edges)
      : blocks_(blocks),
        bytes_(bytes),
        excess_(excess),
        clock_(clock),
        until_(until),
        slot_(slot),
        edges_(edges->data()) {}

  // Looks at the most promising chunk first, then at those of which nothing is known or that may
  // have a cheaper window than what was found.
  Window run() {
    int promising = -1;
    Bytes changed_end = BlockMap::kNoChange;
    for (int c = 0; c < blocks_.num_chunks(); ++c) {
      const BlockMap::Chunk& chunk = blocks_.chunk(c);
      if (chunk.num_candidates == 0) continue;
      BlockMap::Seen& seen = chunk.seen[slot_];
      changed_end = std::max(changed_end, std::exchange(seen.changed_end, BlockMap::kNoChange));
      if (seen.bytes != bytes_ || seen.excess != excess_ || clock_ > seen.until ||
          changed_end > chunk.offsets[0] - bytes_) {
        seen.bytes = 0;
      } else if (promising < 0 || seen.least < blocks_.chunk(promising).seen[slot_].least) {
        promising = c;
      }
    }
    if (promising >= 0) look_and_remember(promising);
    for (int c = 0; c < blocks_.num_chunks(); ++c) {
      const BlockMap::Chunk& chunk = blocks_.chunk(c);
      if (chunk.num_candidates == 0 || c == promising) continue;
      const BlockMap::Seen& seen = chunk.seen[slot_];
      if (seen.bytes == 0 || seen.least <= best_key_) look_and_remember(c);
    }
    return best_;
  }

  // The same without anything remembered, for checks.
  Window run_afresh() {
    for (int c = 0; c < blocks_.num_chunks(); ++c) look_at(c);
    return best_;
  }

 private:
  // Blocks since the last barrier: the edges before them and after the last one. [low, high) are
  // the current window.
  struct Run {
    size_t low = 0;
    size_t high = 0;
    uint64_t total = 0;
    uint64_t later = 0;
  };

  void look_and_remember(int c) {
    blocks_.chunk(c).seen[slot_] = {bytes_, excess_, until_, look_at(c), BlockMap::kNoChange};
  }

  // Compares all windows that end in the chunk. Returns the least key one will have at `until`.
  double look_at(int c) {
    const BlockMap::Chunk& chunk = blocks_.chunk(c);
    if (next_ != c) start_before(c);
    next_ = c + 1;
    // On their own, so that the compiler divides for several blocks at once.
    double scores[BlockMap::kChunkBlocks];
    double later[BlockMap::kChunkBlocks];
    for (int i = 0; i < chunk.count; ++i) {
      scores[i] = score(chunk.costs[i], chunk.last_accesses[i], clock_);
    }
    for (int i = 0; i < chunk.count; ++i) {
      later[i] = score(chunk.costs[i], chunk.last_accesses[i], until_);
    }
    double least = kInfinity;
    Bytes inverse_of = 0;
    double inverse = 0;
    Run run = run_;
    for (int i = 0; i < chunk.count; ++i) {
      if (chunk.costs[i] == kBarrier) {
        run.low = run.high = 0;
        continue;
      }
      const Bytes end = chunk.offsets[i] + chunk.bytes[i];
      append(run, chunk.offsets[i], end, scores[i], later[i]);
      while (end - edges_[run.low + 1].offset >= bytes_) ++run.low;
      const WindowEdge& begin = edges_[run.low];
      const Bytes window_bytes = end - begin.offset;
      if (window_bytes < bytes_) continue;
      if (window_bytes != inverse_of) {  // most are as large as the last one
        inverse_of = window_bytes;
        inverse = 1 / divisor(window_bytes);
      }
      least = std::min(least, power(run.later - begin.later) * inverse);
      const double window_power = power(run.total - begin.total);
      if (window_power * inverse > best_at_most_) [[likely]]
        continue;
      const double window_key = window_power / divisor(window_bytes);
      if (window_key < best_key_ || (window_key == best_key_ && end < best_.end)) {
        best_key_ = window_key;
        best_at_most_ = window_key * (1 + kRounding);
        best_ = {begin.offset, end, run.total - begin.total};
      }
    }
    run_ = run;
    return least * (1 - kRounding);
  }

  // A window that ends in the chunk may begin before it.
  void start_before(int c) {
    run_.low = run_.high = 0;
    BlockMap::Position position{c, 0};
    const Block first = blocks_.at(position);
    if (first.cost == kBarrier) return;
    while (blocks_.has_previous(position)) {
      const BlockMap::Position previous = blocks_.previous(position);
      const Block block = blocks_.at(previous);
      if (block.cost == kBarrier) break;
      position = previous;
      if (block.offset <= first.offset + first.bytes - bytes_) break;
    }
    for (; position.chunk < c; position = blocks_.next(position)) {
      const Block block = blocks_.at(position);
      append(run_, block.offset, block.offset + block.bytes,
             score(block.cost, block.last_access, clock_),
             score(block.cost, block.last_access, until_));
    }
  }

  void append(Run& run, Bytes offset, Bytes end, double score, double later) {
    if (run.high == 0) edges_[0] = {offset, run.total, run.later};
    run.total += whole(score);
    run.later += whole(later);
    edges_[++run.high] = {end, run.total, run.later};
  }

  // Both fit the signed type, to and from which the processor converts in one instruction.
  static uint64_t whole(double score) { return static_cast<uint64_t>(static_cast<int64_t>(score)); }
  // What windows are compared by, their key, is power / divisor.
  double power(uint64_t score) const {
    const auto sum = static_cast<double>(static_cast<int64_t>(score));
    return excess_ ? sum * sum : sum;
  }
  double divisor(Bytes bytes) const { return excess_ ? static_cast<double>(bytes) : 1.0; }

  const BlockMap& blocks_;
  const Bytes bytes_;
  const bool excess_;
  const double clock_;
  const double until_;
  const int slot_;
  WindowEdge* const edges_;
  Run run_;
  int next_ = 0;  // the chunk that follows the last block appended
  Window best_;
  double best_key_ = kInfinity;
  double best_at_most_ = kInfinity;  // the same, for what was not divided exactly
};

}  // namespace

Window Search::cheapest_window(const BlockMap& blocks, Bytes bytes, double clock, bool excess) {
  // What is found out should hold for the next few searches; the longer, the less it says.
  constexpr double kSearches = 4;
  constexpr double kAveraged = 8;
  advance_ += (std::max(clock - last_clock_, 0.0) - advance_) / kAveraged;
  last_clock_ = clock;
  const double until = clock + kSearches * advance_;
  if (std::exchange(last_bytes_, bytes) != bytes) slot_ = 1 - slot_;
  edges_.resize(static_cast<size_t>(blocks.size()) + 1);
  const Window found = Pass(blocks, bytes, excess, clock, until, slot_, &edges_).run();
  COOP_DEBUG_ASSERT(found ==
                    Pass(blocks, bytes, excess, clock, until, slot_, &edges_).run_afresh());
  return found;
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
