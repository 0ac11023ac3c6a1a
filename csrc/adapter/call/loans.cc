#include "adapter/call/loans.h"

#include "adapter/engine.h"

namespace coop {

Loans::~Loans() {
  for (Loan& loan : all_) loan.owner->take_back(&loan.operation);
}

}  // namespace coop
