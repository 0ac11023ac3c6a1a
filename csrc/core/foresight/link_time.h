// The time that one direction of the link has left, by half operators (see Scheduler): an estimate,
// which a Timeline corrects.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/types.h"

namespace coop {

class LinkTime {
 public:
  // From there on, or up to there, so much was found; `missing` is what was not.
  struct Found {
    int32_t slot;
    Cost missing;
  };

  void reset(const std::vector<Cost>& durations) {
    left_ = durations;
    forward_.resize(left_.size() + 1);
    backward_.resize(left_.size() + 1);
    std::iota(forward_.begin(), forward_.end(), 0);
    std::iota(backward_.begin(), backward_.end(), 0);
    for (size_t slot = 0; slot < left_.size(); ++slot) {
      if (left_[slot] <= 0) pass_over(static_cast<int32_t>(slot));
    }
  }

  // So much time as early as there is some in [begin, end): the last slot that it is of, or `end`.
  Found find_early(int32_t begin, int32_t end, Cost time) {
    int32_t last = end;
    for (int32_t slot = next(begin); slot < end; slot = next(slot + 1)) {
      last = slot;
      if ((time -= left_[slot]) <= 0) return {last, 0};
    }
    return {last, time};
  }
  // As late: the first slot that it is of, or `begin`.
  Found find_late(int32_t begin, int32_t end, Cost time) {
    int32_t first = begin;
    for (int32_t slot = previous(end - 1); slot >= begin; slot = previous(slot - 1)) {
      first = slot;
      if ((time -= left_[slot]) <= 0) return {first, 0};
    }
    return {first, time};
  }
  void take_early(int32_t begin, int32_t end, Cost time) {
    for (int32_t slot = next(begin); slot < end && time > 0; slot = next(slot + 1)) {
      take(slot, time);
    }
  }
  void take_late(int32_t begin, int32_t end, Cost time) {
    for (int32_t slot = previous(end - 1); slot >= begin && time > 0; slot = previous(slot - 1)) {
      take(slot, time);
    }
  }

 private:
  void take(int32_t slot, Cost& time) {
    const Cost taken = std::min(time, left_[slot]);
    left_[slot] -= taken;
    time -= taken;
    if (left_[slot] <= 0) pass_over(slot);
  }
  void pass_over(int32_t slot) {
    forward_[slot] = slot + 1;
    backward_[slot + 1] = slot;
  }
  // The first slot from there on that has any.
  int32_t next(int32_t slot) {
    int32_t found = slot;
    while (forward_[found] != found) found = forward_[found];
    while (forward_[slot] != found) slot = std::exchange(forward_[slot], found);
    return found;
  }
  // The last up to there; -1: none. Shifted by one.
  int32_t previous(int32_t slot) {
    int32_t at = slot + 1;
    int32_t found = at;
    while (backward_[found] != found) found = backward_[found];
    while (backward_[at] != found) at = std::exchange(backward_[at], found);
    return found - 1;
  }

  std::vector<Cost> left_;  // by slot
  // Where to look next, if a slot has none left; else itself. The second is shifted by one.
  std::vector<int32_t> forward_;
  std::vector<int32_t> backward_;
};

}  // namespace coop
