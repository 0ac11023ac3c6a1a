// What torch's profilers see of us: operators' arguments, and the memory that a program takes.
#pragma once

#include <ATen/record_function.h>

#include <atomic>

#include "core/types.h"

namespace coop {

// A profiler runs: what is evicted is brought back before it looks at an operator's arguments, and
// it is asked whether it wants to know of memory.
void set_profiling(bool profiling);
inline std::atomic<bool> is_profiling{false};

// A replay is no operator of the program's, and what it allocates is not either.
class UnprofiledScope {
 public:
  UnprofiledScope();
  ~UnprofiledScope();
  UnprofiledScope(const UnprofiledScope&) = delete;
  UnprofiledScope& operator=(const UnprofiledScope&) = delete;

 private:
  const at::DisableRecordFunctionGuard unrecorded_;
};

// Whether a profiler of this thread wants to know what the program allocates and frees.
bool wants_memory();
inline bool is_memory_profiled() {
  return is_profiling.load(std::memory_order_relaxed) && wants_memory();
}

}  // namespace coop
