// Memory that is not the arena's (tensors made outside of the budget), as far as recipes read it.
//
// Note [Memory of others]
// It is a root without a block, and kept alive while a recipe reads it. What NumPy can write is
// never a recipe's input: results of reading it are kept. That an array shares memory of torch's is
// seen by its storage, which torch makes one that cannot be resized, so arrays from before the
// budget count too.
#pragma once

#include <c10/core/Storage.h>

#include <unordered_map>

#include "adapter/locks.h"
#include "core/core.h"

namespace coop {

// One engine's. Under its lock, but for sweep(), which takes it.
class Externals {
 public:
  Externals(Core& core, EngineLocks& locks, Bytes header_bytes)
      : core_(core), locks_(locks), header_bytes_(header_bytes) {}

  // The core's storage for it; add() makes one where there is none.
  Storage* find(c10::StorageImpl* impl) const;
  Storage* add(c10::StorageImpl* impl);
  // From now on others may write it unseen.
  Storage* add_shared(c10::StorageImpl* impl);
  bool is_shared(c10::StorageImpl* impl) const {
    if (!has_shared_) return false;
    const Storage* storage = find(impl);
    return storage != nullptr && storage->exposed;
  }
  // What reads it later gets to know it anew. To be destroyed when the lock is free.
  c10::Storage forget(c10::StorageImpl* impl);

  // Lets go of what no recipe reads any more.
  bool is_sweep_due() const { return all_.size() > sweep_at_; }
  void sweep();

 private:
  struct External {
    Storage* storage;
    c10::Storage keep_alive;  // a root that a live recipe needs keeps its bytes (Rule 3)
  };

  Core& core_;
  EngineLocks& locks_;
  const Bytes header_bytes_;
  std::unordered_map<c10::StorageImpl*, External> all_;
  size_t sweep_at_ = 64;
  bool has_shared_ = false;  // whether any was
};

}  // namespace coop
