// What operators above our dispatch key look at is held for as long as they run.
#pragma once

#include <c10/core/DispatchKey.h>

#include "adapter/call/loans.h"
#include "adapter/call/running.h"

namespace coop {

// Comes before all of torch's own keys but those of Python's dispatcher. Torch keeps it for its
// tests.
inline constexpr c10::DispatchKey kAboveKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// What operators make on this thread is added to it.
class HoldScope {
 public:
  explicit HoldScope(Loans* loans) : outer_(running().hold) { running().hold = loans; }
  ~HoldScope() { running().hold = outer_; }
  HoldScope(const HoldScope&) = delete;
  HoldScope& operator=(const HoldScope&) = delete;

 private:
  Loans* const outer_;
};

}  // namespace coop
