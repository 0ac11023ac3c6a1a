// Where recipes come from, and where they end. One is made for most operators, and is too large for
// malloc's fast path. A recipe owns arguments whose destruction may come back to us, so it is
// destroyed when the lock is free.
#pragma once

#include <vector>

#include "adapter/call/frozen_call.h"
#include "adapter/locks.h"
#include "core/pages.h"

namespace coop {

// One engine's. Under its lock, but for clean_up(), which takes it.
class RecipePool {
 public:
  explicit RecipePool(EngineLocks& locks) : locks_(locks) {}

  FrozenCall* make(const c10::OperatorHandle& op);
  // Nothing needs it any more.
  void retire(FrozenCall* recipe) { retired_.push_back(recipe); }
  // Not worth two locks for one recipe.
  bool is_full() const { return retired_.size() >= 64; }
  // Destroys those that are retired.
  void clean_up();

 private:
  EngineLocks& locks_;
  Pages pages_;
  std::vector<FrozenCall*> unused_;
  std::vector<FrozenCall*> retired_;
  std::vector<FrozenCall*> spare_;  // empty: its memory is for the next ones
};

}  // namespace coop
