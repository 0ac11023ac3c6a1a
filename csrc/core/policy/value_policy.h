// DTR and DTE: one value at a time, until a free block fits.
#pragma once

#include "core/policy/policy.h"

namespace coop {

class ValuePolicy final : public Policy {
 public:
  explicit ValuePolicy(bool count_free_neighbours)
      : count_free_neighbours_(count_free_neighbours) {}
  Plan choose(const Situation& now, SearchMemory& memory) const override;

 private:
  const bool count_free_neighbours_;
};

}  // namespace coop
