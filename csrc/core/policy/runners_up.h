// Windows that searches found besides the cheapest one: the next request of that size may take one
// of them (decision 0005). Costs change meanwhile, so one is scored again before it is taken.
#pragma once

#include <vector>

#include "core/policy/search.h"
#include "core/types.h"

namespace coop {

// Of one search.
struct RunnersUp {
  Bytes bytes = 0;      // that were asked for
  double most_key = 0;  // more expensive ones are not taken: a search might find a cheaper one
  std::vector<RankedWindow> windows;  // the cheapest last; none overlaps another

  void put_back(const RankedWindow& ranked);
};

// Of the windows that a search has left in its memory, the cheapest ones but for `best`.
RunnersUp rank_runners_up(Bytes bytes, const Window& best, SearchMemory& memory);

// Of the last searches for two different sizes: two sizes often take turns.
class RecentRunnersUp {
 public:
  void keep(RunnersUp found) {
    if (kept_[last_].bytes != found.bytes) last_ = 1 - last_;
    kept_[last_] = std::move(found);
  }
  // What is left of those for so many bytes; null: none.
  RunnersUp* find(Bytes bytes) {
    for (RunnersUp& each : kept_) {
      if (each.bytes == bytes && !each.windows.empty()) return &each;
    }
    return nullptr;
  }

 private:
  RunnersUp kept_[2];
  int last_ = 0;
};

}  // namespace coop
