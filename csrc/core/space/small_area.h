// Small values live apart, in extents of the arena that are never evicted, so that they cannot
// split the arena. Each extent is an arena of its own.
#pragma once

#include <memory>
#include <vector>

#include "core/space/arena.h"

namespace coop {

class SmallArea {
 public:
  explicit SmallArea(Bytes alignment) : alignment_(alignment) {}

  // An extent's share of the budget is small.
  static Bytes extent_bytes(Bytes budget, Bytes small_bytes, Bytes alignment);

  // The extent that took the block, or null when none has room.
  Arena* place(Value* value, Bytes bytes, Bytes* offset);
  // Frees a block; returns the begin of an extent that became empty and was dropped (the first
  // extent stays), or Arena::kNowhere.
  Bytes free(Arena* extent, Bytes offset);
  void add_extent(Bytes begin, Bytes bytes);

  const std::vector<std::unique_ptr<Arena>>& extents() const { return extents_; }

 private:
  Bytes alignment_;
  std::vector<std::unique_ptr<Arena>> extents_;
};

}  // namespace coop
