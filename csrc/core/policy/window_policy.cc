#include "core/policy/window_policy.h"

namespace coop {

namespace {

struct WindowSize {
  int64_t num_values = 0;
  Bytes room = 0;  // bytes that it frees: not those of what it moves
};

WindowSize size_of(const SearchCosts& costs, const Window& window) {
  WindowSize size;
  costs.for_each_in(window, [&](const Block& block) {
    size.num_values += !block.is_free();
    if (block.cost >= 0) size.room += block.bytes;
  });
  return size;
}

// To bring back all that it evicts, a set once, whatever is adjacent to it; and to copy what it
// moves.
Cost cost_of(const Situation& now, const SearchCosts& costs, const Window& window) {
  now.scores.begin_sum();
  Cost sum = 0;
  costs.for_each_in(window, [&](const Block& block) {
    if (block.is_free()) return;
    sum = block.cost < 0 ? sum + now.copy_cost.of(block.bytes)
                         : now.scores.add_to_sum(sum, block.value);
  });
  return sum;
}

double mean_staleness(const SearchCosts& costs) {
  double staleness = 0;
  int64_t num_candidates = 0;
  costs.for_each([&](const Block& block) {
    if (block.is_free() || block.cost == kBarrier) return;
    staleness += costs.clock() - block.last_access + 1;
    ++num_candidates;
  });
  return staleness / static_cast<double>(num_candidates);
}

}  // namespace

Plan WindowPolicy::choose(const Situation& now, SearchMemory& memory) const {
  Plan plan;
  if (now.foreseen && now.may_move && find_window_by_moving(now, plan, memory)) return plan;
  SearchCosts costs(now.blocks, now.clock, now.locked);
  // In a smaller map a search takes less time than what is remembered would save.
  const bool rank = options_.remember_runners_up && now.blocks.size() >= Scores::kManyBlocks;
  const bool has_copies = now.scores.has_copies();
  costs.hold_roots(has_copies);
  plan.window = find_cheapest_window(costs, now.bytes, options_.count_excess, rank, memory);
  // A root that has not been used for long looks cheap, whatever the link: it leaves where even the
  // cheapest window without one costs more than it has been idle.
  if (has_copies && (plan.window.empty() || plan.window.score > kOneScore)) {
    costs.hold_roots(false);
    plan.window = find_cheapest_window(costs, now.bytes, options_.count_excess, rank, memory);
    plan.num_looked += now.blocks.size();
  }
  if (options_.cap_costs && plan.window.score > kOneScore) {
    plan.window = search_with_capped_costs(now, rank, costs, memory);
  }
  if (rank) plan.runners_up = rank_runners_up(now.bytes, plan.window, memory);
  if (options_.move_expensive && find_window_moving_expensive_values(now, costs, plan, memory)) {
    // The others that were found would evict such values.
    if (plan.runners_up) plan.runners_up->windows.clear();
  }
  list_values(costs, now.may_move, plan);
  return plan;
}

// What a schedule does not want is gone already, so there is room, but not in one piece: all that a
// window contains is moved. False: there is no such window.
bool WindowPolicy::find_window_by_moving(const Situation& now, Plan& plan,
                                         SearchMemory& memory) const {
  SearchCosts costs(now.blocks, now.clock, now.locked);
  constexpr double kAnyPrice = -1;
  costs.move_expensive(kAnyPrice, /*staleness=*/1, now.copy_cost);
  plan.window = find_cheapest_window(costs, now.bytes, /*excess=*/false, /*rank=*/false, memory);
  if (plan.window.empty()) return false;
  list_values(costs, now.may_move, plan);
  return true;
}

// Even the cheapest window costs more to recompute than it has been idle. What is adjacent to a
// value is then a large set, the same one for most values, and a set says more than it should: its
// members are not all needed to recompute the value, nor were they all evicted at once. So it
// counts for no more than a multiple of the value's own cost.
Window WindowPolicy::search_with_capped_costs(const Situation& now, bool rank, SearchCosts& costs,
                                              SearchMemory& memory) const {
  constexpr Cost kMostInflation = 128;
  costs.cap(kMostInflation);
  return find_cheapest_window(costs, now.bytes, options_.count_excess, rank, memory);
}

// A large window evicts whatever lies between cheap values, and to move a value aside takes two
// passes over its bytes, which is less than most operators take. So where a window is expensive,
// another one is looked for that moves what is more expensive per byte than the window was. False:
// the plan's window is the better one.
bool WindowPolicy::find_window_moving_expensive_values(const Situation& now, SearchCosts& costs,
                                                       Plan& plan, SearchMemory& memory) const {
  // A look at all blocks should not be for less than so many of them.
  constexpr int64_t kBlocksPerValue = 64;
  const Window window = plan.window;
  const auto [num_values, room] = size_of(costs, window);
  if (num_values < 2 || num_values * kBlocksPerValue < now.blocks.size() || !now.may_move) {
    return false;
  }
  const Cost cost = cost_of(now, costs, window);
  if (cost <= now.copy_cost.of(room)) return false;

  SearchCosts moving = costs;
  const double price = static_cast<double>(window.score) / static_cast<double>(room);
  const double staleness = mean_staleness(costs);
  moving.move_expensive(price, staleness, now.copy_cost);
  const Window other =
      find_cheapest_window(moving, now.bytes, options_.count_excess, /*rank=*/false, memory);
  plan.num_looked += now.blocks.size();
  if (other.empty()) return false;
  const Bytes other_room = size_of(moving, other).room;
  const bool better = window_key(other.score, other_room, options_.count_excess) <
                          window_key(window.score, room, options_.count_excess) &&
                      cost_of(now, moving, other) < cost;
  if (!better) return false;
  plan.window = other;
  costs.move_expensive(price, staleness, now.copy_cost);
  return true;
}

}  // namespace coop
