#include "adapter/errors.h"

namespace coop {

BudgetOutOfMemory::BudgetOutOfMemory(const OutOfBudget& cause)
    : c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, cause.what()),
      BudgetExceeded(cause) {}

BudgetError::BudgetError(const OutOfBudget& cause)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, cause.what()),
      BudgetExceeded(cause) {}

}  // namespace coop
