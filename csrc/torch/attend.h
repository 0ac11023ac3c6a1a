// When recomputing does not look for signals.
#pragma once

namespace coop {

// While a budget is left on this thread: what is not brought back then is lost, so whoever
// interrupts it waits.
class UninterruptedScope {
 public:
  UninterruptedScope();
  ~UninterruptedScope();
  UninterruptedScope(const UninterruptedScope&) = delete;
  UninterruptedScope& operator=(const UninterruptedScope&) = delete;
};

}  // namespace coop
