// Time that passes, for statistics; the core's own clock counts what operators cost.
#pragma once

#include <chrono>
#include <cstdint>

namespace coop {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace coop
