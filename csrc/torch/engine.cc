// Which engines there are, and what a user may ask of one; storages.cc has the rest of it.
#include "torch/engine.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "torch/above.h"
#include "torch/attend.h"
#include "torch/source.h"

namespace coop {

namespace {

constexpr size_t kFirstGpu = 2;  // in the list of active engines

// The engines of all sessions that still have tensors. Never destroyed: tensors may outlive it all.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Engine>> engines;
  // By device: main memory, no memory at all, then the GPUs.
  std::array<std::atomic<Engine*>, kFirstGpu + 64> active{};
  std::atomic<Engine*> sole{nullptr};  // when there is but one
};

size_t index_of(c10::Device device) {
  if (!device.is_cuda()) return device.is_meta() ? 1 : 0;
  return kFirstGpu + static_cast<size_t>(std::max<int>(device.index(), 0));
}

Registry& registry() {
  static auto* instance = new Registry();
  return *instance;
}

}  // namespace

BudgetOutOfMemory::BudgetOutOfMemory(const OutOfBudget& cause)
    : c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, cause.what()),
      BudgetExceeded(cause) {}

BudgetError::BudgetError(const OutOfBudget& cause)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, cause.what()),
      BudgetExceeded(cause) {}

void Call::clear() {
  for (Loan& loan : loans) loan.owner->take_back(&loan.operation);
  loans.clear();
  tensors.clear();
  parts.clear();
  before.clear();
  before_dimensions.clear();
  storages.clear();
  fresh.clear();
  inputs.clear();
  fixed_bytes = 0;
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
  c10::Device device = invocation.device();
  // Any GPU is the current one.
  if (device.is_cuda() && !device.has_index()) {
    device = c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice();
  }
  return active_engine(device);
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

std::vector<std::shared_ptr<Engine>> cuda_engines() {
  std::vector<std::shared_ptr<Engine>> result;
  for (size_t i = kFirstGpu; i < registry().active.size(); ++i) {
    if (Engine* engine = registry().active[i].load(std::memory_order_acquire)) {
      result.push_back(engine->shared_from_this());
    }
  }
  return result;
}

bool is_in_an_arena(const void* address) {
  const std::lock_guard<std::mutex> guard(registry().mutex);
  for (const auto& engine : registry().engines) {
    const char* base = engine->memory().base();
    if (address >= base && address < base + engine->memory().reserved_bytes()) return true;
  }
  return false;
}

namespace {
std::vector<std::shared_ptr<Engine>>& forking() {
  static auto* engines = new std::vector<std::shared_ptr<Engine>>();
  return *engines;
}
}  // namespace

void before_fork() {
  {
    const std::lock_guard<std::mutex> guard(registry().mutex);
    forking() = registry().engines;
  }
  for (const auto& engine : forking()) engine->lock_for_fork();
  registry().mutex.lock();
  lock_op_infos();
}

void after_fork() {
  unlock_op_infos();
  registry().mutex.unlock();
  for (const auto& engine : forking()) engine->unlock_after_fork();
  forking().clear();
}

void forget_engine(const Engine* engine) {
  Registry& all = registry();
  std::shared_ptr<Engine> last;  // destroyed unlocked
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = std::find_if(all.engines.begin(), all.engines.end(),
                                  [&](const auto& entry) { return entry.get() == engine; });
  if (found == all.engines.end()) return;
  last = std::move(*found);
  all.engines.erase(found);
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
  c10::impl::tls_set_dispatch_key_included(kOurKey, enabled);
  c10::impl::tls_set_dispatch_key_included(kAboveKey, enabled);
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

void Engine::materialize(c10::StorageImpl* impl) {
  const std::lock_guard<MaterializerMutex> materializer(materializer_);
  const EngineLock guard(*this);
  Storage* storage = find(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr) recorder_->materialize(storage);
  core_.materialize(storage);
}

void Engine::lend(c10::ArrayRef<c10::StorageImpl*> impls, Operation* operation) {
  const std::lock_guard<MaterializerMutex> materializer(materializer_);
  const EngineLock guard(*this);
  std::vector<Storage*> storages;
  for (c10::StorageImpl* impl : impls) {
    Storage* storage = look_up(impl);
    if (storage == nullptr) continue;
    if (recorder_ != nullptr) recorder_->materialize(storage);
    storages.push_back(storage);
  }
  for (int attempt = 0;;) {
    try {
      return core_.begin(*operation, storages.data(), storages.size());
    } catch (const OutOfBudget& error) {
      const Bytes wanted = error.shortage.wanted;
      if (!core_.make_room(storages.data(), storages.size(), wanted, &attempt)) throw;
    }
  }
}

void Engine::take_back(Operation* operation) {
  const EngineLock guard(*this);
  core_.abort(*operation);
}

bool Engine::evict(c10::StorageImpl* impl) {
  const std::lock_guard<MaterializerMutex> materializer(materializer_);
  const EngineLock guard(*this);
  Storage* storage = find(impl);
  if (storage != nullptr && recorder_ != nullptr) recorder_->evict(storage);
  return storage != nullptr && core_.evict(storage);
}

void Engine::evict_all() {
  const std::lock_guard<MaterializerMutex> materializer(materializer_);
  const EngineLock guard(*this);
  core_.evict_all();
}

void Engine::pin(c10::StorageImpl* impl, const char* reason, bool for_good) {
  const std::lock_guard<MaterializerMutex> materializer(materializer_);
  const EngineLock guard(*this);
  Storage* storage = find(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr) recorder_->materialize(storage);
  core_.materialize(storage);
  if (recorder_ != nullptr) recorder_->pin(storage);
  core_.keep(storage, reason, for_good);
}

void Engine::expose(c10::StorageImpl* impl) {
  {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
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
    if (ours) {
      core_.keep(storage, "its memory is shared with a NumPy array or the like", /*for_good=*/true);
    }
  }
  empty_trash();
}

void Engine::before_unseen_write(c10::StorageImpl* impl) {
  c10::Storage garbage;
  {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
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
  const EngineLock guard(*this);
  Storage* storage = find(impl);
  if (storage == nullptr) return;
  const bool pinned = storage->keeps > 0;
  core_.unkeep(storage);
  if (recorder_ != nullptr && pinned && storage->keeps == 0) recorder_->unpin(storage);
}

void Engine::begin_step() {
  in_step_.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
    if (recorder_ != nullptr) recorder_->begin_step();
    core_.begin_step();
  }
  empty_trash();
}

void Engine::end_step(bool boundary) {
  in_step_.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
    if (recorder_ != nullptr) recorder_->end_step(boundary);
    core_.end_step(boundary);
  }
  warn_if_slow();
  empty_trash();
  sweep_externals();
}

void Engine::log_events(bool on, size_t limit) {
  if (on) start_sources();
  records_sources_.store(on, std::memory_order_relaxed);
  const EngineLock guard(*this);
  core_.events().limit = limit;
  core_.log_events(on);
}

Stats Engine::stats() {
  const EngineLock guard(*this);
  return core_.stats();
}

std::map<std::string, std::string> Engine::pinned_operators() {
  const EngineLock guard(*this);
  std::map<std::string, std::string> result;
  for (const auto& [id, reason] : pinned_) result.emplace(op_info(id).name, reason);
  return result;
}

Shortage Engine::shortage(Bytes bytes) {
  const EngineLock guard(*this);
  return core_.space().shortage(bytes);
}

void Engine::start_recording(const Recorder::Options& options) {
  if (options.source_lines) start_sources();
  std::unique_ptr<Recorder> last;  // destroyed unlocked
  const EngineLock guard(*this);
  last = std::exchange(recorder_, std::make_unique<Recorder>(core_, header_bytes_, options));
  if (options.source_lines) records_sources_.store(true, std::memory_order_relaxed);
}

std::string Engine::stop_recording() {
  std::unique_ptr<Recorder> last;  // destroyed unlocked
  const EngineLock guard(*this);
  std::string lines = recorder_ == nullptr ? std::string() : recorder_->take();
  last = std::move(recorder_);
  records_sources_.store(core_.events().enabled, std::memory_order_relaxed);
  return lines;
}

std::vector<std::string> Engine::close() {
  const UninterruptedScope uninterrupted;
  std::vector<std::string> lost;
  // What is brought back, which other threads may drop meanwhile; let go of unlocked.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;
  {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
    const Bytes rest = memory_->reserved_bytes() - config_.core.budget - config_.core.alignment;
    if (rest > 0) core_.grow(rest / config_.core.alignment * config_.core.alignment);
    // What is brought back leaves the arena at once, so that there is room for the next. What fails
    // is tried again after all others, when what only their records kept is gone, for as long as
    // any of them came back.
    for (bool progress = true; progress;) {
      progress = false;
      lost.clear();
      const std::vector<Storage*> evicted = core_.evicted_storages();
      const size_t first = held.size();
      for (const Storage* storage : evicted) held.push_back(hold(*storage));
      for (size_t i = 0; i < evicted.size(); ++i) {
        Storage* storage = evicted[i];
        // Its last tensor is just going, or another's replay has brought it back.
        if (!held[first + i] || storage->value->is_resident()) continue;
        const std::string size = std::to_string(content_bytes(*storage)) + " bytes (";
        try {
          core_.materialize(storage);
          if (!move_outside(storage)) core_.make_root(storage);
          progress = true;
        } catch (const std::exception& error) {
          lost.push_back(size + error.what() + ")");
        }
      }
    }
    core_.forget_recipes();
  }
  held.clear();
  empty_trash();
  sweep_externals();
  {
    const EngineLock guard(*this);
    core_.space().for_each_block([&](const Block& block) {
      if (block.is_free()) memory_->discard(block.offset, block.bytes);
    });
  }
  // A GPU's is closed once for every budget.
  if (!closed_.exchange(true)) drop_count();
  return lost;
}

}  // namespace coop
