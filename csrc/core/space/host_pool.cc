#include "core/space/host_pool.h"

#include <algorithm>

#include "core/check.h"
#include "core/model/value.h"

namespace coop {

HostPool::HostPool(Bytes bytes, Bytes alignment)
    : bytes_(bytes / alignment * alignment),
      arena_(bytes_ > 0 ? std::make_unique<Arena>(0, bytes_, alignment, Fit::kBest) : nullptr) {}

HostPool::~HostPool() = default;

HostExtents HostPool::take(Value* value, Bytes bytes) {
  COOP_ASSERT(bytes <= free_bytes());
  HostExtents extents;
  while (bytes > 0) {
    const Bytes next = std::min(bytes, arena_->largest_free());
    extents.push_back({arena_->place(value, next, Side::kLeft), next});
    bytes -= next;
  }
  peak_ = std::max(peak_, held());
  return extents;
}

void HostPool::give_back(const HostExtents& extents) {
  for (const HostExtent& extent : extents) arena_->free(extent.offset);
}

void HostPool::shrink() {
  Bytes end = 0;  // of what is held
  arena_->blocks().for_each([&](const Block& block) {
    if (!block.is_free() && block.value != nobody_.get()) end = block.offset + block.bytes;
  });
  if (end == bytes_) return;
  if (nobody_ == nullptr) {
    nobody_ = std::make_unique<Value>();
  } else {
    arena_->free(bytes_);
  }
  bytes_ = end;
  arena_->place_at(nobody_.get(), end, arena_->end() - end);
}

}  // namespace coop
