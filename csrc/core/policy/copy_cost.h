// What it costs to copy bytes within the arena: a launch, and to read and write them. Known from
// the operators: the least that one has cost, and twice the least that a byte has cost that one has
// made.
#pragma once

#include <algorithm>
#include <limits>

#include "core/types.h"

namespace coop {

class CopyCost {
 public:
  // An operator with a recipe made so many bytes at that cost.
  void observe(Cost cost, Bytes made) {
    if (made <= 0 || cost <= 0) return;
    launch_ = std::min(launch_, cost);
    const auto bytes = static_cast<double>(made);
    if (cost < byte_ * bytes) byte_ = cost / bytes;  // hardly ever divides
  }
  Cost of(Bytes bytes) const { return launch_ + 2 * byte_ * static_cast<double>(bytes); }

 private:
  Cost launch_ = std::numeric_limits<Cost>::infinity();
  Cost byte_ = std::numeric_limits<Cost>::infinity();
};

}  // namespace coop
