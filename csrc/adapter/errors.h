// An allocation that did not fit, on its way from the core to Python.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "core/types.h"

namespace coop {

// On its way to whoever runs the operator or the replay.
class BudgetExceeded {
 public:
  explicit BudgetExceeded(const OutOfBudget& cause)
      : shortage(cause.shortage), replaying(cause.replaying) {}
  Shortage shortage;
  std::string replaying;
};

// The same through torch's own code, as an out-of-memory error.
class BudgetOutOfMemory final : public c10::OutOfMemoryError, public BudgetExceeded {
 public:
  explicit BudgetOutOfMemory(const OutOfBudget& cause);
};

// And as one that torch's code lets pass. After an out-of-memory error the callers of cuDNN go on
// with another algorithm, whose bits differ, and remember it for the shape.
class BudgetError final : public c10::Error, public BudgetExceeded {
 public:
  explicit BudgetError(const OutOfBudget& cause);
};

// Of an operator that is run in parts: how many of its tensors had been written by then.
struct Updated {
  int64_t tensors = 0;
  int64_t of = 0;
};

// Raises coop.OutOfBudgetError in Python.
[[noreturn]] void throw_out_of_budget(const std::string& op, const std::string& replaying,
                                      const Shortage& shortage, const Updated& updated = {});

}  // namespace coop
