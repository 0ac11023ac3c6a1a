#include "core/policy/value_policy.h"

namespace coop {

Plan ValuePolicy::choose(const Situation& now, SearchMemory&) const {
  const SearchCosts costs(now.blocks, now.clock, now.locked);
  Plan plan;
  plan.window = find_cheapest_value(costs, count_free_neighbours_);
  list_values(costs, now.may_move, plan);
  return plan;
}

}  // namespace coop
