#include "core/space/host_pool.h"

#include <algorithm>

#include "core/check.h"

namespace coop {

HostExtents HostPool::take(Value* value, Bytes bytes) {
  COOP_ASSERT(bytes <= free_bytes());
  HostExtents extents;
  while (bytes > 0) {
    const Bytes next = std::min(bytes, arena_->largest_free());
    extents.push_back({arena_->place(value, next, Side::kLeft), next});
    bytes -= next;
  }
  return extents;
}

void HostPool::give_back(const HostExtents& extents) {
  for (const HostExtent& extent : extents) arena_->free(extent.offset);
}

}  // namespace coop
