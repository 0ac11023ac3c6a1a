// What torch's profilers see of us: operators' arguments, and the memory that a program takes.
#pragma once

#include <ATen/record_function.h>

#include "core/types.h"

namespace coop {

// Whether what is evicted is brought back before a profiler looks at an operator's arguments.
void show_inputs(bool show);

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
bool is_memory_profiled();

}  // namespace coop
