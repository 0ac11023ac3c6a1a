// Choosing what to evict: a runner-up of an earlier search, or a search.
#include <algorithm>

#include "core/check.h"
#include "core/clock.h"
#include "core/core.h"

namespace coop {

Window Core::choose(Bytes bytes) {
  const int64_t begin_ns = now_ns();
  spared_.clear();
  int64_t num_looked = 0;
  Window window = next_best(bytes, &num_looked);
  if (window.empty()) {
    window = search(bytes);
    // What is tried again will find everything moved together first.
    const bool is_final = !goes_further() || !host_->may_move() || !host_->may_retry();
    if (window.empty() && is_final && unprotect_late()) window = search(bytes);
    num_looked += arena_.blocks().size();
  }
  const int64_t elapsed_ns = now_ns() - begin_ns;
  ++stats_.num_searches;
  stats_.search_ns += elapsed_ns;
  stats_.searched_blocks += num_looked;
  events_.emit(EventKind::kSearch, num_looked, window.begin, bytes, elapsed_ns, 0, clock_, origin_);
  return window;
}

// The cheapest of the runners-up, if it is still cheap; empty when there is none.
Window Core::next_best(Bytes bytes, int64_t* num_looked) {
  RunnersUp* runners_up = search_.runners_up(bytes);
  if (runners_up == nullptr) return {};
  join_sets();
  std::vector<RankedWindow>& windows = runners_up->windows;
  while (!windows.empty()) {
    RankedWindow ranked = windows.back();
    windows.pop_back();
    if (!windows.empty()) __builtin_prefetch(windows.back().only);
    Bytes room = 0;
    const Window window = rescored(ranked, bytes, &room, num_looked);
    if (window.empty()) continue;
    ranked.key = window_key(window.score, room, config_.excess);
    if (ranked.key > runners_up->most_key) continue;
    if (windows.empty() || ranked.key <= windows.back().key) return window;
    runners_up->put_back(ranked);
  }
  return {};
}

// A window from the block that contains its first byte on, as the graph scores it now; empty when a
// barrier is in the way.
Window Core::rescored(const RankedWindow& ranked, Bytes bytes, Bytes* room, int64_t* num_looked) {
  auto score_of = [&](Value* value) {
    COOP_DEBUG_ASSERT(value->is_evictable());
    const Cost cost = value->late                        ? -moving_cost(value)
                      : (value->stale & kStaleSets) != 0 ? neighbourhood_cost(value, false)
                                                         : score_cost(value);
    return static_cast<uint64_t>(score(cost, value->last_access, clock_));
  };
  // Most are one block, which need not be looked for.
  Value* only = ranked.only;
  if (only != nullptr && only->offset == ranked.begin && only->is_candidate && !only->late &&
      only->bytes >= bytes) {
    ++*num_looked;
    if (only->locks > 0) return {};
    *room = only->bytes;
    return {only->offset, only->offset + only->bytes, score_of(only)};
  }
  const BlockMap& blocks = arena_.blocks();
  BlockMap::Position position = blocks.find_containing(ranked.begin);
  Window window;
  window.begin = blocks.at(position).offset;
  for (;; position = blocks.next(position)) {
    const Block block = blocks.at(position);
    Value* value = block.value;
    ++*num_looked;
    if (value == nullptr || !value->late) *room += block.bytes;
    if (value != nullptr) {
      // What is a candidate can be evicted, which takes longer to find out.
      if (value->locks > 0 || !(value->is_candidate || value->is_evictable())) return {};
      window.score += score_of(value);
    }
    window.end = block.offset + block.bytes;
    if (*room >= bytes) return window;
    if (!blocks.has_next(position)) return {};
  }
}

Window Core::search(Bytes bytes) {
  hide_locked();
  Window window;
  if (config_.policy == Policy::kCoop && config_.window) {
    window = search_.cheapest_window(arena_.blocks(), bytes, clock_, config_.excess);
  } else {
    window = search_.cheapest_block(arena_.blocks(), config_.policy == Policy::kDte, clock_);
  }
  if (goes_further() && config_.window) {
    if (window.score > kOneScore) window = look_again(bytes);
    window = spare_dear(bytes, window);
  }
  show_locked();
  return window;
}

// Even the cheapest window would take longer to recompute than it has not been used. What is beside
// a value is then a large set, the same one for most values, and a set says more than it should:
// its members are not all needed to recompute the value, nor were they all evicted at once. So it
// counts for no more than a multiple of the value's own cost.
Window Core::look_again(Bytes bytes) {
  constexpr Cost kInflated = 128;
  arena_.rescore([&](const Value* value, Cost& cost, double&) {
    if (cost != kBarrier && !value->late) cost = std::min(cost, kInflated * value->cost);
  });
  all_sets_changed_ = true;  // these are not kept up to date
  return search_.cheapest_window(arena_.blocks(), bytes, clock_, config_.excess);
}

// A large window evicts whatever lies between cheap values, and to move a value aside takes two
// passes over its bytes, which is less than most operators take. So where a window is dear, another
// one is looked for that moves what is dearer to the byte than the window was.
Window Core::spare_dear(Bytes bytes, const Window& window) {
  // A look at all blocks should not be for less than so many of them.
  constexpr int64_t kBlocksPerValue = 64;
  const BlockMap& blocks = arena_.blocks();
  int64_t num_values = 0;
  Bytes room = 0;
  for_each_block_in(window, [&](const Block& block) {
    num_values += !block.is_free();
    if (block.cost >= 0) room += block.bytes;
  });
  if (num_values < 2 || num_values * kBlocksPerValue < blocks.size() || !host_->may_move()) {
    return window;
  }
  const Cost cost = window_cost(window);
  if (cost <= copying_cost(room)) return window;

  double staleness = 0;
  int64_t num_candidates = 0;
  for_each_block([&](const Block& block) {
    if (block.is_free() || block.cost == kBarrier) return;
    staleness += clock_ - block.last_access + 1;
    ++num_candidates;
  });
  staleness /= static_cast<double>(num_candidates);
  const double price = static_cast<double>(window.score) / static_cast<double>(room);
  marked_.clear();
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    for (int i = 0; i < blocks.chunk(c).count; ++i) {
      const Block block = blocks.chunk(c).block(i);
      if (block.is_free() || block.cost == kBarrier || block.cost < 0) continue;
      const double own_score = score(block.cost, block.last_access, clock_);
      if (own_score <= price * static_cast<double>(block.bytes)) continue;
      // The copy is made now, for room that will be wanted as long as values mostly are.
      const Cost copying = copying_cost(block.bytes);
      marked_.push_back({{c, i}, block.cost});
      arena_.set_cost({c, i}, -copying * (clock_ - block.last_access + 1) / staleness);
    }
  }
  const Window other = search_.cheapest_window(blocks, bytes, clock_, config_.excess, false);
  stats_.searched_blocks += blocks.size();
  Bytes other_room = 0;
  for_each_block_in(other, [&](const Block& block) {
    if (block.cost >= 0) other_room += block.bytes;
  });
  const bool better = !other.empty() &&
                      window_key(other.score, other_room, config_.excess) <
                          window_key(window.score, room, config_.excess) &&
                      window_cost(other) < cost;
  for (const Marked& marked : marked_) {
    const Block block = blocks.at(marked.position);
    if (better && other.contains(block.offset)) spared_.push_back(block.value);
    arena_.set_cost(marked.position, marked.cost);
  }
  if (!better) return window;
  search_.forget(bytes);  // the others that it found would evict such values
  return other;
}

// Nothing fits as long as late values stay: those that are resident are evicted as all others from
// now on. False when there are none.
bool Core::unprotect_late() {
  bool any = false;
  for_each_block([&](const Block& block) {
    if (block.is_free() || !block.value->late) return;
    block.value->late = false;
    refresh(block.value);
    any = true;
  });
  return any;
}

// Locks change with every operator and searches are rare, so locks are put on the map for a search.
void Core::hide_locked() {
  refresh_stale();
  hidden_.clear();
  auto hide = [&](const Value* value) {
    if (value->locks == 0 || !value->is_resident() || value->arena != &arena_) return;
    const BlockMap::Position position = arena_.find(value->offset);
    const Cost cost = arena_.blocks().at(position).cost;
    if (cost == kBarrier) return;
    hidden_.push_back({position, cost});
    arena_.set_cost(position, kBarrier);
  };
  if (static_cast<int64_t>(locked_.size()) <= arena_.blocks().size()) {
    for (const Value* value : locked_) hide(value);
  } else {
    // A long chain is being replayed (Rule 12): most of what is locked has no block yet.
    for_each_block([&](const Block& block) {
      if (!block.is_free()) hide(block.value);
    });
  }
}

void Core::show_locked() {
  for (const Marked& hidden : hidden_) arena_.set_cost(hidden.position, hidden.cost);
}

}  // namespace coop
