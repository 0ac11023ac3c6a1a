// The engine's dealings with storages: their memory, what leads from one to the other, their end.
#include <ATen/Context.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/prefetch.h"
#include "torch/engine.h"
#include "torch/profiling.h"

namespace coop {

namespace {

// Torch 2.11 can make a storage throw on access, but not take that back: its flag is set directly.
bool& throws_on_access(c10::StorageImpl& impl);
template <bool c10::StorageImpl::* Flag>
struct Exposed {
  friend bool& throws_on_access(c10::StorageImpl& impl) { return impl.*Flag; }
};
template struct Exposed<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

template <typename Impl>
void allow_access(Impl* impl) {
  if constexpr (requires { impl->clear_data_ptr_access_error_msg_(); }) {
    impl->clear_data_ptr_access_error_msg_();
  } else {
    throws_on_access(*impl) = false;
  }
}

Storage*& header(void* data) {
  return *reinterpret_cast<Storage**>(static_cast<char*>(data) - sizeof(Storage*));
}

// To a profiler. What is evicted and comes back is the program's all the while.
void report_memory(void* address, Bytes change, const Stats& stats, c10::Device device) {
  c10::reportMemoryUsageToProfiler(address, change, static_cast<size_t>(stats.held),
                                   static_cast<size_t>(stats.budget), device);
}

// The shape of an operator's result; empty if it is not known.
std::optional<c10::IntArrayRef> shape_of(const FrozenCall& record, size_t output) {
  size_t next = 0;
  for (const FrozenTensor& tensor : record.tensors) {
    if (tensor.write >= 0 && record.num_fresh + static_cast<size_t>(tensor.write) == output) {
      return tensor.sizes(record.dimensions);
    }
    if (tensor.defined) next = tensor.first_dimension + 2 * tensor.num_dimensions;
  }
  for (size_t i = 0; next < record.dimensions.size(); ++i) {
    const int64_t num_dimensions = record.dimensions[next];
    if (i == output) {
      if (num_dimensions < 0) break;  // not known
      return c10::IntArrayRef(record.dimensions.data() + next + 1, num_dimensions);
    }
    next += 1 + static_cast<size_t>(std::max<int64_t>(num_dimensions, 0));
  }
  return {};
}

std::string evicted_message(const Value& value, Bytes bytes) {
  std::string message;
  message.reserve(256);
  message +=
      "coop: this tensor's bytes are evicted, so its memory cannot be read directly. They are ";
  message += std::to_string(bytes);
  message += " bytes";
  if (const auto* call = dynamic_cast<const FrozenCall*>(value.recipe)) {
    if (const auto shape = shape_of(*call, value.output_index)) {
      message += " of shape (";
      for (size_t i = 0; i < shape->size(); ++i) {
        if (i > 0) message += ", ";
        message += std::to_string((*shape)[i]);
      }
      message += ")";
    }
    message += ", made by ";
    message += call->info->name;
  }
  message += ". Call coop.materialize(tensor) first, or coop.keep(tensor) to keep them in memory.";
  return message;
}

}  // namespace

Storage* Engine::find(c10::StorageImpl* impl) const {
  const c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  Storage* storage = nullptr;
  if (data.get_context() == nullptr) return nullptr;
  if (deleter == &Engine::delete_address) {
    storage = header(data.get_context());
  } else if (deleter == &Engine::delete_storage) {
    storage = static_cast<Storage*>(data.get_context());
  } else {
    return nullptr;
  }
  return storage->core == &core_ ? storage : nullptr;
}

void* Engine::address(const Value& value) const {
  return value.external != nullptr ? value.external
                                   : memory_->base() + value.offset + header_bytes_;
}

// Owns the storage: destroying it tells the engine that the storage died.
c10::DataPtr Engine::data_ptr(Storage& storage) const {
  return {address(*storage.value), &storage, &Engine::delete_storage, memory_->device()};
}

// The same for what nobody has seen yet: it may be freed by its address alone. It is not evicted or
// moved, so the header before it leads to the storage.
c10::DataPtr Engine::fresh_ptr(Storage& storage) const {
  if (header_bytes_ == 0) return data_ptr(storage);
  void* data = address(*storage.value);
  header(data) = &storage;
  return {data, data, &Engine::delete_address, memory_->device()};
}

// A thread may drop the last tensor of a storage while another one, under the lock, evicts it. The
// weak reference lets the other one know.
void Engine::set_handle(Storage* storage, c10::StorageImpl* impl) {
  c10::raw::weak_intrusive_ptr::incref(impl);
  storage->handle = impl;
}

void Engine::drop_handle(Storage* storage) {
  if (storage->handle == nullptr) return;
  auto* impl = static_cast<c10::StorageImpl*>(std::exchange(storage->handle, nullptr));
  c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(impl).reset();
}

// Null when its last tensor is just going: whoever drops that waits for the lock, and does not look
// at its memory.
c10::intrusive_ptr<c10::StorageImpl> Engine::hold(const Storage& storage) {
  if (storage.handle == nullptr) return {};
  auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(
      static_cast<c10::StorageImpl*>(storage.handle));
  c10::intrusive_ptr<c10::StorageImpl> impl = weak.lock();
  weak.release();
  return impl;
}

// Calls f(impl) to give the storage other memory, if it still needs any.
template <typename F>
void Engine::exchange(const Storage& storage, F&& f) {
  c10::intrusive_ptr<c10::StorageImpl> impl = hold(storage);
  if (!impl) return;
  f(impl.get());
  // The last tensor may have gone meanwhile, and with it a Python object.
  garbage_.push_back(std::move(impl));
}

// Its memory is about to get an owner who frees by address. It is pinned, so the header stays.
void Engine::make_simple(Storage& storage) {
  exchange(storage, [&](c10::StorageImpl* impl) {
    impl->_mutable_data_ptr_no_checks().release_context();
    impl->set_data_ptr_noswap(fresh_ptr(storage));
  });
}

// The same as find(), for what an operator is about to use.
Storage* Engine::look_up(c10::StorageImpl* impl) const {
  Storage* storage = find(impl);
  // Made outside of any operator: a root.
  if (storage != nullptr && storage->handle == nullptr) set_handle(storage, impl);
  return storage;
}

// Of an operator's tensors: one lock for all of them.
void Engine::find_storages(Call& call) {
  if (call.tensors.empty()) return;
  const EngineLock guard(*this);
  for (TensorArgument& entry : call.tensors) {
    if (entry.impl == nullptr) continue;
    entry.storage = look_up(entry.impl);
    if (entry.storage == nullptr) {
      entry.shared = is_shared(entry.impl);
      continue;
    }
    // begin() will lock it.
    prefetch_range(entry.storage->value, sizeof(Value));
    entry.shared = entry.storage->exposed;
    call.storages.push_back(entry.storage);
  }
}

void Engine::storage_died(Storage* storage) {
  if (recorder_ != nullptr) recorder_->died(storage);
  if (!memory_->defer(storage)) core_.storage_died(storage);
}

c10::DataPtr Engine::allocate(Bytes bytes) {
  num_storages_.fetch_add(1, std::memory_order_relaxed);
  std::optional<OutOfBudget> failure;
  {
    const EngineLock guard(*this);
    core_.set_origin(running().origin);
    for (Storage* storage : memory_->completed(/*wait=*/false)) core_.storage_died(storage);
    try {
      Storage* storage = nullptr;
      try {
        storage = core_.allocate(bytes + header_bytes_, running().side);
      } catch (const OutOfBudget&) {
        // Other streams may still hold what is missing.
        const std::vector<Storage*> freed = memory_->completed(/*wait=*/true);
        if (freed.empty()) throw;
        for (Storage* dead : freed) core_.storage_died(dead);
        storage = core_.allocate(bytes + header_bytes_, running().side);
      }
      memory_->allocated(storage);
      if (recorder_ != nullptr) recorder_->allocated(storage, bytes);
      if (is_memory_profiled()) {
        report_memory(address(*storage->value), bytes, core_.stats(), memory_->device());
      }
      return fresh_ptr(*storage);
    } catch (const OutOfBudget& error) {
      failure = error;
    }
  }
  drop_count();
  // As the program counts: without the header that begins a block.
  failure->shortage.wanted = bytes;
  failure->shortage.largest_window =
      std::max<Bytes>(failure->shortage.largest_window - header_bytes_, 0);
  ++running().failed_allocations;
  last_shortage() = failure->shortage;
  // Inside an operator torch's own code may handle it; run() and replay() do otherwise.
  const bool cuda = !memory_->device().is_cpu();
  // Where cuDNN's benchmark mode chooses by trying, an algorithm that does not fit is passed over.
  if (cuda && running().depth > 0 && !at::globalContext().benchmarkCuDNN()) {
    throw BudgetError(*failure);
  }
  if (cuda || running().depth > 0) throw BudgetOutOfMemory(*failure);
  throw_out_of_budget("an allocation outside of any operator", "", failure->shortage);
}

void Engine::delete_address(void* context) { delete_storage(header(context)); }

bool Engine::delete_raw(void* address) {
  if (!is_in_an_arena(address)) return false;
  delete_address(address);
  return true;
}

void Engine::delete_storage(void* context) {
  auto* storage = static_cast<Storage*>(context);
  auto* engine = static_cast<Engine*>(storage->core->host());
  bool trash = false;
  {
    const EngineLock guard(*engine);
    drop_handle(storage);
    if (is_memory_profiled()) {
      void* address = storage->value->is_resident() ? engine->address(*storage->value) : nullptr;
      report_memory(address, -engine->content_bytes(*storage), engine->core_.stats(),
                    engine->memory_->device());
    }
    engine->storage_died(storage);
    trash = engine->is_trash_full();
  }
  if (trash) engine->empty_trash();
  engine->drop_count();
}

// The last one is the last tensor of a session that is over, or the session itself.
void Engine::drop_count() {
  if (num_storages_.fetch_sub(1, std::memory_order_acq_rel) == 1) forget_engine(this);
}

// Records own arguments whose destruction may come back to us, so they are destroyed unlocked.
void Engine::empty_trash() {
  std::vector<FrozenCall*> trash;
  {
    const EngineLock guard(*this);
    trash.swap(trash_);
    trash_.swap(spare_trash_);
  }
  constexpr size_t kAhead = 2;
  for (size_t i = 0; i < trash.size(); ++i) {
    if (i + kAhead < trash.size()) FrozenCall::prefetch(trash[i + kAhead]);
    trash[i]->~FrozenCall();
  }
  const EngineLock guard(*this);
  for (FrozenCall* memory : trash) records_.take_back(memory);
  trash.clear();
  spare_trash_.swap(trash);
}

void Engine::release(Storage& storage) {
  exchange(storage, [&](c10::StorageImpl* impl) {
    c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
    COOP_ASSERT(find(impl) == &storage);
#if defined(COOP_DEBUG) && COOP_DEBUG
    // Reading what is gone must not go unnoticed.
    if (memory_->device().is_cpu()) std::memset(data.get(), 0xA5, content_bytes(storage));
#endif
    data.release_context();
    data = c10::DataPtr(nullptr, &storage, &Engine::delete_storage, memory_->device());
    // Rule 13: raw access throws from now on.
    impl->release_data_and_set_meta_custom_data_ptr_error_msg_(
        evicted_message(*storage.value, content_bytes(storage)));
  });
}

void Engine::restore(Storage& storage) {
  exchange(storage, [&](c10::StorageImpl* impl) {
    COOP_ASSERT(find(impl) == &storage);
    impl->_mutable_data_ptr_no_checks().release_context();
    allow_access(impl);
    impl->set_data_ptr_noswap(data_ptr(storage));
  });
}

void Engine::copy(Value& to, const Value& from, Bytes bytes) {
  memory_->copy(address(to), address(from), bytes - header_bytes_);
}

void Engine::move(Value& value, Bytes from) {
  char* to_address = static_cast<char*>(address(value));
  const char* from_address = memory_->base() + from + header_bytes_;
  // Pieces as long as the way do not overlap.
  const Bytes piece = std::abs(from - value.offset);
  const Bytes bytes = value.bytes - header_bytes_;
  for (Bytes done = 0; done < bytes; done += piece) {
    memory_->copy(to_address + done, from_address + done, std::min(piece, bytes - done));
  }
  if (value.storage == nullptr) return;
  exchange(*value.storage, [&](c10::StorageImpl* impl) {
    c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
    data.release_context();
    data = data_ptr(*value.storage);
  });
}

// A storage over an address, owning nothing.
c10::Storage Engine::view_of(void* address, Bytes bytes, c10::Device device) const {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(address, device),
                      c10::GetAllocator(device.type()), /*resizable=*/true);
}

Storage* Engine::external(c10::StorageImpl* impl) {
  const auto found = externals_.find(impl);
  if (found != externals_.end()) return found->second.storage;
  void* data = impl->_mutable_data_ptr_no_checks().get();
  Storage* storage = core_.add_external(data, static_cast<Bytes>(impl->nbytes()) + header_bytes_);
  storage->handle = impl;
  c10::Storage keep_alive(
      c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl));
  externals_.emplace(impl, External{storage, std::move(keep_alive)});
  return storage;
}

bool Engine::is_shared(c10::StorageImpl* impl) const {
  if (!has_shared_externals_) return false;
  const auto found = externals_.find(impl);
  return found != externals_.end() && found->second.storage->exposed;
}

// Lets go of external memory that no record reads any more. Called unlocked: letting go may
// destroy.
void Engine::sweep_externals() {
  std::vector<c10::Storage> garbage;
  const EngineLock guard(*this);
  for (auto it = externals_.begin(); it != externals_.end();) {
    const Value* value = it->second.storage->value;
    // That it is shared must be known as long as somebody can read it.
    const bool shared = it->second.storage->exposed && it->second.keep_alive.use_count() > 1;
    if (value->users != nullptr || value->locks > 0 || shared) {
      ++it;
      continue;
    }
    core_.storage_died(it->second.storage);
    garbage.push_back(std::move(it->second.keep_alive));
    it = externals_.erase(it);
  }
  sweep_at_ = 2 * externals_.size() + 64;
}

// Copies a resident tensor, which the caller holds, out of the arena.
bool Engine::move_outside(Storage* storage) {
  auto* impl = static_cast<c10::StorageImpl*>(storage->handle);
  if (find(impl) != storage) return false;
  c10::DataPtr outside = memory_->allocate_outside(content_bytes(*storage));
  if (!outside) return false;
  memory_->copy(outside.get(), address(*storage->value), content_bytes(*storage));
  c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
  data.release_context();
  data = std::move(outside);
  drop_handle(storage);
  core_.storage_died(storage);
  num_storages_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}  // namespace coop
