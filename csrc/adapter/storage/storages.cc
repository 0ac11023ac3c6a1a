#include "adapter/storage/storages.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "adapter/call/running.h"
#include "adapter/dispatch/profiling.h"
#include "adapter/engine.h"
#include "adapter/errors.h"
#include "adapter/registry.h"
#include "adapter/storage/evicted_message.h"
#include "adapter/torch_releases.h"
#include "core/check.h"

namespace coop {

namespace {

Storage*& header(void* data) {
  return *reinterpret_cast<Storage**>(static_cast<char*>(data) - sizeof(Storage*));
}

// To a profiler. What is evicted and comes back is the program's all the while.
void report_memory(void* address, Bytes change, const Stats& stats, c10::Device device) {
  c10::reportMemoryUsageToProfiler(address, change, static_cast<size_t>(stats.held),
                                   static_cast<size_t>(stats.budget), device);
}

// A thread may drop the last tensor of a storage while another one, under the lock, evicts it. The
// weak reference lets the other one know.
void set_handle(Storage* storage, c10::StorageImpl* impl) {
  c10::raw::weak_intrusive_ptr::incref(impl);
  storage->handle = impl;
}

void drop_handle(Storage* storage) {
  if (storage->handle == nullptr) return;
  auto* impl = static_cast<c10::StorageImpl*>(std::exchange(storage->handle, nullptr));
  c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(impl).reset();
}

}  // namespace

Storages::Storages(Engine& engine, Memory& memory)
    : engine_(engine),
      memory_(memory),
      base_(memory.base()),
      header_bytes_(memory.header_bytes()) {}

// --- the allocator

c10::DataPtr Storages::allocate(Bytes bytes) {
  count_.fetch_add(1, std::memory_order_relaxed);
  engine_.in_flight().poll();
  std::optional<OutOfBudget> failure;
  do {
    failure.reset();
    Core& core = engine_.core();
    const EngineLock guard(engine_);
    core.set_origin(running().origin);
    try {
      Storage* storage = core.allocate(bytes + header_bytes_, running().side);
      memory_.allocated(storage);
      if (Recorder* recorder = engine_.recorder()) recorder->allocated(storage, bytes);
      if (is_memory_profiled()) {
        report_memory(address(*storage->value), bytes, core.stats(), memory_.device());
      }
      return fresh_ptr(*storage);
    } catch (const OutOfBudget& error) {
      failure = error;
    }
  } while (engine_.in_flight().collect());  // what a collective used may leave now
  drop_count();
  // As the program counts: without the header that begins a block.
  failure->shortage.wanted = bytes;
  failure->shortage.largest_window =
      std::max<Bytes>(failure->shortage.largest_window - header_bytes_, 0);
  ++running().failed_allocations;
  last_shortage() = failure->shortage;
  // Inside an operator torch's own code may handle it; whoever runs it does otherwise.
  const bool cuda = !memory_.device().is_cpu();
  // Where cuDNN's benchmark mode chooses by trying, an algorithm that does not fit is passed over.
  if (cuda && running().depth > 0 && !at::globalContext().benchmarkCuDNN()) {
    throw BudgetError(*failure);
  }
  if (cuda || running().depth > 0) throw BudgetOutOfMemory(*failure);
  throw_out_of_budget("an allocation outside of any operator", "", failure->shortage);
}

void Storages::delete_address(void* context) { delete_storage(header(context)); }

bool Storages::delete_raw(void* address) {
  if (!is_in_an_arena(address)) return false;
  delete_address(address);
  return true;
}

void Storages::delete_storage(void* context) {
  auto* storage = static_cast<Storage*>(context);
  Engine& engine = TorchHost::engine_of(*storage);
  Storages& storages = engine.storages();
  bool clean_up = false;
  {
    const EngineLock guard(engine);
    storages.forget(storage);
    clean_up = engine.recipes().is_full();
  }
  if (clean_up) engine.recipes().clean_up();
  storages.drop_count();
}

// Nobody has it any more.
void Storages::forget(Storage* storage) {
  drop_handle(storage);
  if (is_memory_profiled()) {
    void* address = storage->value->is_resident() ? this->address(*storage->value) : nullptr;
    report_memory(address, -content_bytes(*storage), engine_.core().stats(), memory_.device());
  }
  if (Recorder* recorder = engine_.recorder()) recorder->died(storage);
  engine_.core().storage_died(storage, memory_.after_last_use(storage));
}

void Storages::drop_count() {
  if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) forget_engine(&engine_);
}

// --- which shows which

Storage* Storages::find(c10::StorageImpl* impl) const {
  const c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  Storage* storage = nullptr;
  if (data.get_context() == nullptr) return nullptr;
  if (deleter == &Storages::delete_address) {
    storage = header(data.get_context());
  } else if (deleter == &Storages::delete_storage) {
    storage = static_cast<Storage*>(data.get_context());
  } else {
    return nullptr;
  }
  return storage->core == &engine_.core() ? storage : nullptr;
}

Storage* Storages::look_up(c10::StorageImpl* impl) const {
  Storage* storage = find(impl);
  // Made outside of any operator: a root.
  if (storage != nullptr && storage->handle == nullptr) set_handle(storage, impl);
  return storage;
}

void Storages::adopt(Storage& storage, c10::StorageImpl* impl) const {
  set_handle(&storage, impl);
  if (header_bytes_ == 0) return;
  // The header is not kept.
  impl->_mutable_data_ptr_no_checks().release_context();
  impl->set_data_ptr_noswap(data_ptr(storage));
}

c10::intrusive_ptr<c10::StorageImpl> Storages::hold(const Storage& storage) {
  if (storage.handle == nullptr) return {};
  auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(
      static_cast<c10::StorageImpl*>(storage.handle));
  c10::intrusive_ptr<c10::StorageImpl> impl = weak.lock();
  weak.release();
  return impl;
}

void Storages::disown(c10::StorageImpl* impl) {
  impl->_mutable_data_ptr_no_checks().release_context();
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void Storages::make_simple(Storage& storage) {
  exchange(storage, [&](c10::StorageImpl* impl) {
    impl->_mutable_data_ptr_no_checks().release_context();
    impl->set_data_ptr_noswap(fresh_ptr(storage));
  });
}

bool Storages::move_outside(Storage* storage) {
  auto* impl = static_cast<c10::StorageImpl*>(storage->handle);
  if (find(impl) != storage) return false;
  c10::DataPtr outside = memory_.allocate_outside(content_bytes(*storage));
  if (!outside) return false;
  memory_.copy(outside.get(), address(*storage->value), content_bytes(*storage));
  disown(impl);
  impl->_mutable_data_ptr_no_checks() = std::move(outside);
  drop_handle(storage);
  engine_.core().storage_died(storage);
  return true;
}

void Storages::drop_memory(c10::StorageImpl* impl) {
  Storage* storage = find(impl);
  impl->_mutable_data_ptr_no_checks().release_context();
  allow_access(impl);
  impl->set_data_ptr_noswap({nullptr, memory_.device()});
  impl->set_nbytes(0);
  forget(storage);
}

// Owns the storage: destroying it tells the engine that the storage died.
c10::DataPtr Storages::data_ptr(Storage& storage) const {
  return {address(*storage.value), &storage, &Storages::delete_storage, memory_.device()};
}

// The same for what nobody has seen yet: it may be freed by its address alone. It is not evicted or
// moved, so the header before it leads to the storage.
c10::DataPtr Storages::fresh_ptr(Storage& storage) const {
  if (header_bytes_ == 0) return data_ptr(storage);
  void* data = address(*storage.value);
  header(data) = &storage;
  return {data, data, &Storages::delete_address, memory_.device()};
}

// Calls f(impl) to give the storage other memory, if it still needs any.
template <typename F>
void Storages::exchange(const Storage& storage, F&& f) {
  c10::intrusive_ptr<c10::StorageImpl> impl = hold(storage);
  if (!impl) return;
  f(impl.get());
  // The last tensor may have gone meanwhile, and with it a Python object.
  engine_.locks().garbage.push_back(std::move(impl));
}

// --- what the core decides

void Storages::release(Storage& storage) {
  exchange(storage, [&](c10::StorageImpl* impl) {
    c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
    COOP_ASSERT(find(impl) == &storage);
#if defined(COOP_DEBUG) && COOP_DEBUG
    // Reading what is gone must not go unnoticed.
    if (memory_.device().is_cpu()) std::memset(data.get(), 0xA5, content_bytes(storage));
#endif
    data.release_context();
    data = c10::DataPtr(nullptr, &storage, &Storages::delete_storage, memory_.device());
    // Rule 13: raw access throws from now on.
    impl->release_data_and_set_meta_custom_data_ptr_error_msg_(
        evicted_message(*storage.value, content_bytes(storage)));
  });
}

void Storages::restore(Storage& storage) {
  exchange(storage, [&](c10::StorageImpl* impl) {
    COOP_ASSERT(find(impl) == &storage);
    impl->_mutable_data_ptr_no_checks().release_context();
    allow_access(impl);
    impl->set_data_ptr_noswap(data_ptr(storage));
  });
}

void Storages::copy(Value& to, const Value& from, Bytes bytes) {
  memory_.copy(address(to), address(from), bytes - header_bytes_);
}

void Storages::move(Value& value, Bytes from) {
  char* to_address = static_cast<char*>(address(value));
  const char* from_address = base_ + from + header_bytes_;
  // Pieces as long as the way do not overlap; upwards, the last one goes first.
  const Bytes piece = std::abs(from - value.offset);
  const Bytes bytes = value.bytes - header_bytes_;
  const Bytes num_pieces = (bytes + piece - 1) / piece;
  for (Bytes i = 0; i < num_pieces; ++i) {
    const Bytes done = piece * (value.offset < from ? i : num_pieces - 1 - i);
    memory_.copy(to_address + done, from_address + done, std::min(piece, bytes - done));
  }
  if (value.storage == nullptr) return;
  exchange(*value.storage, [&](c10::StorageImpl* impl) {
    c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
    data.release_context();
    data = data_ptr(*value.storage);
  });
}

}  // namespace coop
