// Memory that will be written soon. Between two operators torch and the driver empty the fast
// caches, and what is taken next from a list of unused objects is known one operator before.
#pragma once

#include <cstddef>

namespace coop {

inline void prefetch_for_write(const void* memory, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < bytes; i += kLine) {
    __builtin_prefetch(static_cast<const std::byte*>(memory) + i, /*rw=*/1);
  }
}

}  // namespace coop
