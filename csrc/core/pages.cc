#include "core/pages.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace coop {

namespace {

constexpr size_t kLargePageBytes = size_t{1} << 21;

class LargePages final : public std::pmr::memory_resource {
  void* do_allocate(size_t bytes, size_t) override {
    const size_t whole = (bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
    void* memory = std::aligned_alloc(kLargePageBytes, whole);
    if (memory == nullptr) throw std::bad_alloc();
    madvise(memory, whole, MADV_HUGEPAGE);  // it works without
    return memory;
  }
  void do_deallocate(void* memory, size_t, size_t) override { std::free(memory); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

std::pmr::memory_resource* large_pages() {
  static LargePages instance;
  return &instance;
}

// What the library keeps beside the memory that it hands out: the first page is to hold both.
constexpr size_t kOwnBytes = 64;

}  // namespace

Pages::Pages() : monotonic_buffer_resource(kLargePageBytes - kOwnBytes, large_pages()) {}

}  // namespace coop
