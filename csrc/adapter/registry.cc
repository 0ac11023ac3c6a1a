#include "adapter/registry.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "adapter/call/invocation.h"
#include "adapter/dispatch/above.h"
#include "adapter/dispatch/op_info.h"
#include "adapter/engine.h"

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
  std::vector<std::shared_ptr<Engine>> forking;
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

void before_fork() {
  Registry& all = registry();
  {
    const std::lock_guard<std::mutex> guard(all.mutex);
    all.forking = all.engines;
  }
  for (const auto& engine : all.forking) engine->locks().mutex.lock_for_fork();
  all.mutex.lock();
  lock_op_infos();
}

void after_fork() {
  Registry& all = registry();
  unlock_op_infos();
  all.mutex.unlock();
  for (const auto& engine : all.forking) engine->locks().mutex.unlock_after_fork();
  all.forking.clear();
}

void set_thread_enabled(bool enabled) {
  c10::impl::tls_set_dispatch_key_included(kOurKey, enabled);
  c10::impl::tls_set_dispatch_key_included(kAboveKey, enabled);
}

bool is_thread_enabled() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Fake);
}

}  // namespace coop
