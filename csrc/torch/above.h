// What operators above our dispatch key look at is held for as long as they run.
#pragma once

#include <c10/core/DispatchKey.h>

#include <vector>

#include "torch/engine.h"

namespace coop {

// Comes before all of torch's own keys but those of Python's dispatcher. Torch keeps it for its
// tests.
inline constexpr c10::DispatchKey kAboveKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// What one of them holds, until it ends.
struct Hold {
  std::vector<Loan> loans;

  Hold() = default;
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
};

// What operators make on this thread is added to it.
class HoldScope {
 public:
  explicit HoldScope(Hold* hold) : outer_(running().hold) { running().hold = hold; }
  ~HoldScope() { running().hold = outer_; }
  HoldScope(const HoldScope&) = delete;
  HoldScope& operator=(const HoldScope&) = delete;

 private:
  Hold* const outer_;
};

}  // namespace coop
