// Coop: the cheapest window of consecutive blocks, with what we add to it (decision 0004).
#pragma once

#include "core/policy/policy.h"

namespace coop {

class WindowPolicy final : public Policy {
 public:
  explicit WindowPolicy(const PolicyOptions& options) : options_(options) {}
  Plan choose(const Situation& now, SearchMemory& memory) const override;

 private:
  bool find_window_by_moving(const Situation& now, Plan& plan, SearchMemory& memory) const;
  Window search_with_capped_costs(const Situation& now, bool rank, SearchCosts& costs,
                                  SearchMemory& memory) const;
  bool find_window_moving_expensive_values(const Situation& now, SearchCosts& costs, Plan& plan,
                                           SearchMemory& memory) const;

  const PolicyOptions options_;
};

}  // namespace coop
