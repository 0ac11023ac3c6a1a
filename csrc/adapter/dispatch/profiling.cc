// Profilers note the addresses of an operator's tensors before it is dispatched: while one does,
// what is evicted is brought back before it looks.
#include "adapter/dispatch/profiling.h"

#include <c10/core/Allocator.h>

#include <map>
#include <mutex>
#include <vector>

#include "adapter/call/invocation.h"
#include "adapter/call/loans.h"
#include "adapter/call/running.h"
#include "adapter/engine.h"
#include "adapter/registry.h"

namespace coop {

namespace {

std::unique_ptr<at::ObserverContext> bring_back(const at::RecordFunction& function) {
  // What an operator of ours uses is there already.
  if (running().depth > 0) return nullptr;
  const UnprofiledScope unprofiled;
  std::map<Engine*, std::vector<c10::StorageImpl*>> used;
  for (const c10::IValue& argument : function.inputs()) {
    for_each_tensor(argument, [&](const at::Tensor& tensor, int32_t) {
      if (!tensor.defined() || !tensor.has_storage()) return;
      Engine* engine = active_engine(tensor.device());
      if (engine != nullptr) used[engine].push_back(tensor.storage().unsafeGetStorageImpl());
    });
  }
  Loans held;  // together: one must not make room for another
  for (const auto& [engine, impls] : used) {
    try {
      engine->lend(impls, &held.add(*engine));
    } catch (const OutOfBudget&) {
      // They never fit together, so no operator below will use them together either. The profile
      // lacks the shapes of this one.
    }
  }
  return nullptr;
}

thread_local int num_unprofiled = 0;

}  // namespace

UnprofiledScope::UnprofiledScope() { ++num_unprofiled; }
UnprofiledScope::~UnprofiledScope() { --num_unprofiled; }

bool wants_memory() { return c10::memoryProfilingEnabled() && num_unprofiled == 0; }

void set_profiling(bool profiling) {
  static std::mutex mutex;
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  const std::lock_guard<std::mutex> guard(mutex);
  if (profiling == (handle != at::INVALID_CALLBACK_HANDLE)) return;
  is_profiling.store(profiling, std::memory_order_relaxed);
  if (profiling) {
    // Of all threads: these are called before those that a profiler adds to a thread.
    handle = at::addGlobalCallback(at::RecordFunctionCallback(&bring_back).needsInputs(true));
  } else {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

}  // namespace coop
