// Memory for objects that are looked at again when the caches have long forgotten them. In ordinary
// pages the processor has to look up the address of nearly every one of them first, which takes as
// long as fetching it: so they lie together in large pages, where the system has any.
#pragma once

#include <memory_resource>

namespace coop {

// Takes no memory back before its end.
class Pages final : public std::pmr::monotonic_buffer_resource {
 public:
  Pages();
};

}  // namespace coop
