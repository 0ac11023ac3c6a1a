// Memory that will be read or written soon. Between two operators torch and the driver empty the
// fast caches; what is taken next from a list of unused objects is known one operator before, and
// what a pass will come to a while before it does.
#pragma once

#include <cstddef>

namespace coop {

inline void prefetch_range(const void* memory, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < bytes; i += kLine) {
    __builtin_prefetch(static_cast<const std::byte*>(memory) + i, /*rw=*/1);
  }
}

}  // namespace coop
