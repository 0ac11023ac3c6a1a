#include "adapter/storage/externals.h"

#include <utility>
#include <vector>

namespace coop {

Storage* Externals::find(c10::StorageImpl* impl) const {
  const auto found = all_.find(impl);
  return found == all_.end() ? nullptr : found->second.storage;
}

Storage* Externals::add(c10::StorageImpl* impl) {
  if (Storage* known = find(impl)) return known;
  void* data = impl->_mutable_data_ptr_no_checks().get();
  Storage* storage = core_.add_external(data, static_cast<Bytes>(impl->nbytes()) + header_bytes_);
  storage->handle = impl;
  c10::Storage keep_alive(
      c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl));
  all_.emplace(impl, External{storage, std::move(keep_alive)});
  return storage;
}

Storage* Externals::add_shared(c10::StorageImpl* impl) {
  has_shared_ = true;
  return add(impl);
}

c10::Storage Externals::forget(c10::StorageImpl* impl) {
  const auto found = all_.find(impl);
  core_.storage_died(found->second.storage);
  c10::Storage garbage = std::move(found->second.keep_alive);
  all_.erase(found);
  return garbage;
}

void Externals::sweep() {
  std::vector<c10::Storage> garbage;  // destroyed unlocked
  const EngineLock guard(locks_);
  for (auto it = all_.begin(); it != all_.end();) {
    const Value* value = it->second.storage->value;
    // That it is shared must be known as long as somebody can read it.
    const bool shared = it->second.storage->exposed && it->second.keep_alive.use_count() > 1;
    if (value->users != nullptr || value->locks > 0 || shared) {
      ++it;
      continue;
    }
    core_.storage_died(it->second.storage);
    garbage.push_back(std::move(it->second.keep_alive));
    it = all_.erase(it);
  }
  sweep_at_ = 2 * all_.size() + 64;
}

}  // namespace coop
