// Memory for objects that are looked at again when the caches have long forgotten them. In ordinary
// pages the processor has to look up the address of nearly every one of them first, which takes as
// long as fetching it: so they lie together in large pages, where the system has any.
#pragma once

#include <memory_resource>

namespace coop {

constexpr size_t kLargePageBytes = size_t{1} << 21;

// Whole large pages, or what is as large.
std::pmr::memory_resource* large_pages();

}  // namespace coop
