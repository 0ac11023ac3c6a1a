// When an item of a step program has to be in memory, and from which of these times to which it
// stays there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace coop {

// A time (an operator) at which an item has to be there. Kept: it has been there since the need
// before. Else it is made, or made again, for this one; or it was copied, and its copy brings it
// back.
struct Need {
  int32_t time;
  bool kept;
  bool passing = false;  // only for what is made from it then: it is gone while the operator runs
  bool derived = false;  // not of the program: for what is recomputed then
  bool copied = false;
  // Of what is copied: the operators, first and last, in which it is not there, whoever has to wait
  // for that; and from which moment to which it is probably gone (see Scheduler).
  int32_t away_begin = 0;
  int32_t away_end = 0;
  int32_t gone_begin = 0;
  int32_t gone_end = 0;

  bool is_replayed() const { return !kept && !copied; }
};

// Of one item, in order.
using Needs = std::vector<Need>;

// The last one that is not after a time; the first one if all are.
inline size_t need_before(const Needs& needs, int32_t time) {
  const auto after = std::upper_bound(needs.begin(), needs.end(), time,
                                      [](int32_t t, const Need& need) { return t < need.time; });
  return after == needs.begin() ? 0 : after - needs.begin() - 1;
}

}  // namespace coop
