#include "core/policy/chooser.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/clock.h"

namespace coop {

Plan Chooser::choose(Bytes bytes) {
  const int64_t begin_ns = now_ns();
  int64_t num_looked = 0;
  Plan plan = next_runner_up(bytes, &num_looked);
  if (plan.empty()) {
    plan = search(bytes);
    // What is tried again will find everything moved together first.
    const bool is_final = !options_.retry_operators || !host_.may_move() || !host_.may_retry();
    if (plan.empty() && is_final && scores_.stop_protecting_backward()) plan = search(bytes);
    num_looked += space_.blocks().size();
  }
  const int64_t elapsed_ns = now_ns() - begin_ns;
  Stats& stats = journal_.stats;
  ++stats.num_searches;
  stats.search_ns += elapsed_ns;
  stats.searched_blocks += num_looked;
  journal_.events.emit(EventKind::kSearch, num_looked, plan.window.begin, bytes, elapsed_ns, 0,
                       journal_.clock, journal_.origin);
  return plan;
}

Plan Chooser::search(Bytes bytes) {
  scores_.bring_up_to_date();
  find_locked();
  const Situation now{bytes,           journal_.clock, host_.may_move(), foresight_.is_following(),
                      space_.blocks(), scores_,        copy_cost_,       memory_.locked};
  Plan plan = policy_->choose(now, memory_);
  journal_.stats.searched_blocks += plan.num_looked;
  if (plan.runners_up) runners_up_.keep(std::move(*plan.runners_up));
  return plan;
}

// Locks change with every operator and searches are rare, so the map does not know them.
void Chooser::find_locked() {
  const BlockMap& blocks = space_.blocks();
  std::vector<BlockMap::Position>& found = memory_.locked;
  found.clear();
  if (static_cast<int64_t>(graph_.locked().size()) <= blocks.size()) {
    for (const Value* value : graph_.locked()) {
      if (!value->is_resident() || !space_.has(value)) continue;
      const BlockMap::Position position = blocks.find(value->offset);
      if (blocks.at(position).cost != kBarrier) found.push_back(position);
    }
    std::sort(found.begin(), found.end());
    return;
  }
  // A long chain is being replayed (Rule 12): most of what is locked has no block yet.
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      const bool is_locked = !chunk.is_free(i) && chunk.values[i]->locks > 0;
      if (is_locked && chunk.costs[i] != kBarrier) found.push_back({c, i});
    }
  }
}

// The cheapest of the runners-up, if it is still cheap; empty when there is none.
Plan Chooser::next_runner_up(Bytes bytes, int64_t* num_looked) {
  RunnersUp* runners_up = runners_up_.find(bytes);
  if (runners_up == nullptr) return {};
  scores_.join_pending();
  std::vector<RankedWindow>& windows = runners_up->windows;
  while (!windows.empty()) {
    RankedWindow ranked = windows.back();
    windows.pop_back();
    if (!windows.empty()) __builtin_prefetch(windows.back().only);
    Bytes room = 0;
    const Window window = rescored(ranked, bytes, &room, num_looked);
    if (window.empty()) continue;
    ranked.key = window_key(window.score, room, options_.count_excess);
    if (ranked.key > runners_up->most_key) continue;
    if (windows.empty() || ranked.key <= windows.back().key) {
      Plan plan;
      plan.window = window;
      const bool may_move = host_.may_move();
      space_.blocks().for_each_in(window.begin, window.end, [&](const Block& block) {
        if (block.is_free()) return;
        const bool moves = may_move && block.value->made_in_backward;
        (moves ? plan.move : plan.evict).push_back(block.value);
      });
      return plan;
    }
    runners_up->put_back(ranked);
  }
  return {};
}

Window Chooser::rescored(const RankedWindow& ranked, Bytes bytes, Bytes* room,
                         int64_t* num_looked) const {
  auto score_of = [&](Value* value) {
    COOP_DEBUG_ASSERT(value->can_leave());
    return static_cast<uint64_t>(score(scores_.cost_of(value), value->last_access, journal_.clock));
  };
  // Most are one block, which need not be looked for.
  Value* only = ranked.only;
  if (only != nullptr && only->offset == ranked.begin && only->is_candidate &&
      !only->made_in_backward && only->bytes >= bytes) {
    ++*num_looked;
    if (only->locks > 0) return {};
    *room = only->bytes;
    return {only->offset, only->offset + only->bytes, score_of(only)};
  }
  const BlockMap& blocks = space_.blocks();
  BlockMap::Position position = blocks.find_containing(ranked.begin);
  Window window;
  window.begin = blocks.at(position).offset;
  for (;; position = blocks.next(position)) {
    const Block block = blocks.at(position);
    Value* value = block.value;
    ++*num_looked;
    if (value == nullptr || !value->made_in_backward) *room += block.bytes;
    if (value != nullptr) {
      // What is a candidate can leave, which takes longer to find out.
      if (value->locks > 0 || !(value->is_candidate || value->can_leave())) return {};
      window.score += score_of(value);
    }
    window.end = block.offset + block.bytes;
    if (*room >= bytes) return window;
    if (!blocks.has_next(position)) return {};
  }
}

}  // namespace coop
