#include "core/space/small_area.h"

namespace coop {

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
