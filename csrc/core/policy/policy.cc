#include "core/policy/policy.h"

#include "core/policy/value_policy.h"
#include "core/policy/window_policy.h"

namespace coop {

std::unique_ptr<const Policy> make_policy(const PolicyOptions& options) {
  using Search = PolicyOptions::Search;
  if (options.is_window()) return std::make_unique<WindowPolicy>(options);
  return std::make_unique<ValuePolicy>(options.search == Search::kValueAndFreeNeighbour);
}

void list_values(const SearchCosts& costs, bool may_move, Plan& plan) {
  costs.for_each_in(plan.window, [&](const Block& block) {
    if (block.is_free()) return;
    const bool moves = may_move && block.cost < 0;
    (moves ? plan.move : plan.evict).push_back(block.value);
  });
}

}  // namespace coop
