#include "core/space/small_area.h"

#include <algorithm>

namespace coop {

Bytes SmallArea::extent_bytes(Bytes budget, Bytes small_bytes, Bytes alignment) {
  constexpr Bytes kKiB = 1024;
  const Bytes share = std::clamp<Bytes>(budget / 128, 16 * kKiB, 16 * kKiB * kKiB);
  const Bytes bytes = std::max(std::min(share, budget / 16), small_bytes);
  return (bytes + alignment - 1) / alignment * alignment;
}

Arena* SmallArea::place(Value* value, Bytes bytes, Bytes* offset) {
  for (const auto& extent : extents_) {
    if (extent->free_bytes() < bytes) continue;
    *offset = extent->place(value, bytes, Side::kLeft);
    if (*offset != Arena::kNowhere) return extent.get();
  }
  return nullptr;
}

Bytes SmallArea::free(Arena* extent, Bytes offset) {
  extent->free(offset);
  if (extent->held() > 0 || extent == extents_.front().get()) return Arena::kNowhere;
  for (auto it = extents_.begin(); it != extents_.end(); ++it) {
    if (it->get() != extent) continue;
    const Bytes begin = extent->begin();
    extents_.erase(it);
    return begin;
  }
  return Arena::kNowhere;
}

void SmallArea::add_extent(Bytes begin, Bytes bytes) {
  extents_.push_back(std::make_unique<Arena>(begin, begin + bytes, alignment_, Fit::kFromEnds));
}

}  // namespace coop
