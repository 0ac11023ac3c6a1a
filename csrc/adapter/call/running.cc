#include "adapter/call/running.h"

#include <ATen/Context.h>

namespace coop {

Running& running() {
  static thread_local Running instance;
  return instance;
}

Shortage& last_shortage() {
  static thread_local Shortage shortage;
  return shortage;
}

bool went_another_way(const Running& thread, int64_t failures) {
  return thread.failed_allocations != failures && !at::globalContext().benchmarkCuDNN();
}

}  // namespace coop
