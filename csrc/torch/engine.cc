// The engine's dealings with storages: allocation, eviction, restoring, leaving.
#include "torch/engine.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/check.h"
#include "torch/source.h"

namespace coop {

namespace {

// The engines of all sessions that still have tensors. Never destroyed: tensors may outlive it all.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Engine>> engines;
  // By device: main memory, no memory at all, then the GPUs.
  std::array<std::atomic<Engine*>, 2 + 64> active{};
  std::atomic<Engine*> sole{nullptr};  // when there is but one
};

size_t index_of(c10::Device device) {
  if (!device.is_cuda()) return device.is_meta() ? 1 : 0;
  return 2 + static_cast<size_t>(std::max<int>(device.index(), 0));
}

Registry& registry() {
  static auto* instance = new Registry();
  return *instance;
}

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

const std::string& evicted_message() {
  static const auto* message = new std::string(
      "coop: this tensor's bytes are evicted, so its memory cannot be read directly. Call "
      "coop.materialize(tensor) first, or coop.pin(tensor) to keep them in memory.");
  return *message;
}

}  // namespace

BudgetOutOfMemory::BudgetOutOfMemory(const OutOfBudget& cause)
    : c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, cause.what()),
      BudgetExceeded(cause) {}

BudgetError::BudgetError(const OutOfBudget& cause)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, cause.what()),
      BudgetExceeded(cause) {}

void Call::clear() {
  tensors.clear();
  parts.clear();
  before.clear();
  before_dimensions.clear();
  storages.clear();
  fresh.clear();
  inputs.clear();
  understood = true;
  repeatable = true;
  refusal = nullptr;
  rng = RngState();
  bytes_moved = 0;
  half = false;
}

Engine* active_engine(c10::Device device) {
  return registry().active[index_of(device)].load(std::memory_order_acquire);
}

Engine* active_engine(const Invocation& invocation) {
  if (Engine* sole = registry().sole.load(std::memory_order_acquire)) return sole;
  return active_engine(invocation.device());
}

void set_active_engine(c10::Device device, std::shared_ptr<Engine> engine) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> guard(all.mutex);
  all.active[index_of(device)].store(engine.get(), std::memory_order_release);
  if (engine != nullptr) all.engines.push_back(std::move(engine));
  Engine* sole = nullptr;
  int count = 0;
  for (const auto& entry : all.active) {
    if (entry.load() == nullptr) continue;
    sole = entry.load();
    ++count;
  }
  all.sole.store(count == 1 ? sole : nullptr, std::memory_order_release);
}

Running& running() {
  static thread_local Running instance;
  return instance;
}

Shortage& last_shortage() {
  static thread_local Shortage shortage;
  return shortage;
}

void set_thread_enabled(bool enabled) {
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, enabled);
}

bool is_thread_enabled() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Fake);
}

Engine::Engine(const EngineConfig& config, std::unique_ptr<Memory> memory)
    : config_(config),
      memory_(std::move(memory)),
      header_bytes_(memory_->header_bytes()),
      core_(config.core, this) {}

Engine::~Engine() { empty_trash(); }

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

// Calls f(impl) to give the storage other memory, unless its last tensor is just going: whoever
// drops it waits for the lock, and does not look at its memory.
template <typename F>
void Engine::exchange(const Storage& storage, F&& f) {
  if (storage.handle == nullptr) return;
  auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(
      static_cast<c10::StorageImpl*>(storage.handle));
  c10::intrusive_ptr<c10::StorageImpl> impl = weak.lock();
  weak.release();
  if (!impl) return;
  f(impl.get());
  // The last tensor may have gone meanwhile.
  running().exchanging = this;
  impl.reset();
  running().exchanging = nullptr;
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

void Engine::storage_died(Storage* storage) {
  if (recorder_ != nullptr) recorder_->died(storage);
  if (!memory_->defer(storage)) core_.storage_died(storage);
}

c10::DataPtr Engine::allocate(Bytes bytes) {
  num_storages_.fetch_add(1, std::memory_order_relaxed);
  std::optional<OutOfBudget> failure;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (Storage* storage : memory_->completed(/*wait=*/false)) core_.storage_died(storage);
    for (Storage* storage : std::exchange(orphans_, {})) storage_died(storage);
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
      return fresh_ptr(*storage);
    } catch (const OutOfBudget& error) {
      failure = error;
    }
  }
  num_storages_.fetch_sub(1, std::memory_order_relaxed);
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
  {
    const std::lock_guard<std::mutex> guard(registry().mutex);
    bool found = false;
    for (const auto& engine : registry().engines) {
      const char* base = engine->memory_->base();
      found |= address >= base && address < base + engine->memory_->reserved_bytes();
    }
    if (!found) return false;
  }
  delete_address(address);
  return true;
}

void Engine::delete_storage(void* context) {
  auto* storage = static_cast<Storage*>(context);
  auto* engine = static_cast<Engine*>(storage->core->host());
  bool trash = false;
  if (running().exchanging == engine) {  // under the lock, in the middle of something
    drop_handle(storage);
    engine->orphans_.push_back(storage);
  } else {
    const std::lock_guard<std::mutex> guard(engine->mutex_);
    drop_handle(storage);
    engine->storage_died(storage);
    trash = engine->is_trash_full();
  }
  if (trash) engine->empty_trash();
  if (engine->num_storages_.fetch_sub(1, std::memory_order_acq_rel) == 1 &&
      engine->closed_.load(std::memory_order_acquire)) {
    // The last tensor of a session that is over.
    Registry& all = registry();
    std::shared_ptr<Engine> last;
    const std::lock_guard<std::mutex> guard(all.mutex);
    const auto found = std::find_if(all.engines.begin(), all.engines.end(),
                                    [&](const auto& entry) { return entry.get() == engine; });
    if (found != all.engines.end()) {
      last = std::move(*found);
      all.engines.erase(found);
    }
  }
}

// Records own arguments whose destruction may come back to us, so they are destroyed unlocked.
void Engine::empty_trash() {
  std::vector<FrozenCall*> trash;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    trash.swap(trash_);
    trash_.swap(spare_trash_);
  }
  constexpr size_t kAhead = 2;
  for (size_t i = 0; i < trash.size(); ++i) {
    if (i + kAhead < trash.size()) trash[i + kAhead]->prefetch();
    trash[i]->~FrozenCall();
  }
  const std::lock_guard<std::mutex> guard(mutex_);
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
    impl->release_data_and_set_meta_custom_data_ptr_error_msg_(evicted_message());
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
  const std::lock_guard<std::mutex> guard(mutex_);
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

void Engine::materialize(c10::StorageImpl* impl) {
  const std::lock_guard<std::recursive_mutex> materializer(materializer_);
  const std::lock_guard<std::mutex> guard(mutex_);
  Storage* storage = find(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr) recorder_->materialize(storage);
  core_.materialize(storage);
}

bool Engine::evict(c10::StorageImpl* impl) {
  const std::lock_guard<std::recursive_mutex> materializer(materializer_);
  const std::lock_guard<std::mutex> guard(mutex_);
  Storage* storage = find(impl);
  if (storage != nullptr && recorder_ != nullptr) recorder_->evict(storage);
  return storage != nullptr && core_.evict(storage);
}

void Engine::evict_all() {
  const std::lock_guard<std::recursive_mutex> materializer(materializer_);
  const std::lock_guard<std::mutex> guard(mutex_);
  core_.evict_all();
}

void Engine::pin(c10::StorageImpl* impl, const char* reason) {
  const std::lock_guard<std::recursive_mutex> materializer(materializer_);
  const std::lock_guard<std::mutex> guard(mutex_);
  Storage* storage = find(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr) {
    recorder_->materialize(storage);
    recorder_->pin(storage);
  }
  core_.materialize(storage);
  core_.pin(storage, reason);
}

void Engine::expose(c10::StorageImpl* impl) {
  {
    const std::lock_guard<std::recursive_mutex> materializer(materializer_);
    const std::lock_guard<std::mutex> guard(mutex_);
    Storage* storage = find(impl);
    const bool ours = storage != nullptr;
    if (!ours) {
      if (impl->nbytes() == 0 || impl->device() != memory_->device()) return;
      storage = external(impl);
      has_shared_externals_ = true;
    }
    if (storage->exposed) return;
    if (recorder_ != nullptr) recorder_->expose(storage, impl);
    core_.materialize(storage);
    core_.expose(storage);
    if (ours) core_.pin(storage, "its memory is shared with a NumPy array or the like");
  }
  empty_trash();
}

void Engine::before_unseen_write(c10::StorageImpl* impl) {
  c10::Storage garbage;
  {
    const std::lock_guard<std::recursive_mutex> materializer(materializer_);
    const std::lock_guard<std::mutex> guard(mutex_);
    if (recorder_ != nullptr) recorder_->unseen_write(find(impl), impl);
    if (Storage* storage = find(impl)) {
      core_.materialize(storage);
      core_.before_unseen_write(storage);
    } else if (const auto found = externals_.find(impl);
               found != externals_.end() && !found->second.storage->exposed) {
      core_.before_unseen_write(found->second.storage);
      // Its address may change too: what reads it later gets to know it anew.
      core_.storage_died(found->second.storage);
      garbage = std::move(found->second.keep_alive);
      externals_.erase(found);
    }
  }
  empty_trash();
}

void Engine::unpin(c10::StorageImpl* impl) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Storage* storage = find(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr && storage->pins > 0) recorder_->unpin(storage);
  core_.unpin(storage);
}

void Engine::begin_step() {
  in_step_.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard<std::recursive_mutex> materializer(materializer_);
    const std::lock_guard<std::mutex> guard(mutex_);
    if (recorder_ != nullptr) recorder_->begin_step();
    core_.begin_step();
  }
  empty_trash();
}

void Engine::end_step(bool boundary) {
  in_step_.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard<std::recursive_mutex> materializer(materializer_);
    const std::lock_guard<std::mutex> guard(mutex_);
    if (recorder_ != nullptr) recorder_->end_step(boundary);
    core_.end_step(boundary);
  }
  empty_trash();
  sweep_externals();
}

void Engine::log_events(bool on, size_t limit) {
  if (on) start_sources();
  records_sources_.store(on, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> guard(mutex_);
  core_.events().limit = limit;
  core_.log_events(on);
}

Stats Engine::stats() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return core_.stats();
}

std::map<std::string, std::string> Engine::pinned_operators() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::map<std::string, std::string> result;
  for (const auto& [id, reason] : pinned_) result.emplace(op_info(id).name, reason);
  return result;
}

Shortage Engine::shortage(Bytes bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return core_.shortage(bytes);
}

void Engine::start_recording(const Recorder::Options& options) {
  const std::lock_guard<std::mutex> guard(mutex_);
  recorder_ = std::make_unique<Recorder>(core_, header_bytes_, options);
  if (!options.source_lines) return;
  start_sources();
  records_sources_.store(true, std::memory_order_relaxed);
}

std::string Engine::stop_recording() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::string lines = recorder_ == nullptr ? std::string() : recorder_->take();
  recorder_.reset();
  records_sources_.store(core_.events().enabled, std::memory_order_relaxed);
  return lines;
}

// Copies a resident tensor out of the arena.
bool Engine::move_outside(Storage* storage) {
  auto* impl = static_cast<c10::StorageImpl*>(storage->handle);
  if (impl == nullptr || find(impl) != storage) return false;
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

std::vector<std::string> Engine::close() {
  std::vector<std::string> lost;
  {
    const std::lock_guard<std::recursive_mutex> materializer(materializer_);
    const std::lock_guard<std::mutex> guard(mutex_);
    const Bytes rest = memory_->reserved_bytes() - config_.core.budget - config_.core.alignment;
    if (rest > 0) core_.grow(rest / config_.core.alignment * config_.core.alignment);
    // What is brought back leaves the arena at once, so that there is room for the next. What fails
    // is tried again after all others, when what only their records kept is gone, for as long as
    // any of them came back.
    std::unordered_set<Storage*> failed;
    bool progress = false;
    for (;;) {
      Storage* next = nullptr;
      for (Storage* storage : core_.evicted_storages()) {
        if (failed.count(storage) != 0) continue;
        next = storage;
        break;
      }
      if (next == nullptr) {
        if (failed.empty() || !progress) break;
        failed.clear();
        lost.clear();
        progress = false;
        continue;
      }
      try {
        core_.materialize(next);
        if (!move_outside(next)) core_.make_root(next);
        progress = true;
      } catch (const std::exception& error) {
        failed.insert(next);
        lost.push_back(std::to_string(content_bytes(*next)) + " bytes (" + error.what() + ")");
      }
    }
    core_.forget_records();
  }
  empty_trash();
  sweep_externals();
  const bool empty = num_storages_.load(std::memory_order_acquire) == 0;
  closed_.store(true, std::memory_order_release);
  if (empty) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> guard(all.mutex);
    std::erase_if(all.engines, [&](const auto& entry) { return entry.get() == this; });
  } else {
    const std::lock_guard<std::mutex> guard(mutex_);
    core_.for_each_block([&](const Block& block) {
      if (block.is_free()) memory_->discard(block.offset, block.bytes);
    });
  }
  return lost;
}

}  // namespace coop
