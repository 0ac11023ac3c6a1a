#include "adapter/call/recipe_pool.h"

#include <new>

namespace coop {

FrozenCall* RecipePool::make(const c10::OperatorHandle& op) {
  void* memory = nullptr;
  if (unused_.empty()) {
    memory = pages_.allocate(sizeof(FrozenCall), alignof(FrozenCall));
  } else {
    memory = unused_.back();
    unused_.pop_back();
    if (!unused_.empty()) FrozenCall::prefetch(unused_.back());
  }
  return new (memory) FrozenCall(op);
}

void RecipePool::clean_up() {
  std::vector<FrozenCall*> retired;
  {
    const EngineLock guard(locks_);
    retired.swap(retired_);
    retired_.swap(spare_);
  }
  constexpr size_t kAhead = 2;
  for (size_t i = 0; i < retired.size(); ++i) {
    if (i + kAhead < retired.size()) FrozenCall::prefetch(retired[i + kAhead]);
    retired[i]->~FrozenCall();
  }
  const EngineLock guard(locks_);
  unused_.insert(unused_.end(), retired.begin(), retired.end());
  retired.clear();
  spare_.swap(retired);
}

}  // namespace coop
