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
  // Slots behind the last one are those of the next step, which is like this one.
  Found find_early(int32_t begin, int32_t end, Cost time) {
    Found found{end, time};
    for_each_step(begin, end, [&](int32_t first, int32_t last, int32_t shift) {
      for (int32_t slot = next(first); slot < last && found.missing > 0; slot = next(slot + 1)) {
        found.missing = std::max(found.missing - left_[slot], 0.0);
        if (found.missing <= 0) found.slot = slot + shift;
      }
    });
    return found;
  }
  // As late: the first slot that it is of, or `begin`.
  Found find_late(int32_t begin, int32_t end, Cost time) {
    Found found{begin, time};
    for_each_step_backwards(begin, end, [&](int32_t first, int32_t last, int32_t shift) {
      for (int32_t slot = previous(last - 1); slot >= first && found.missing > 0;
           slot = previous(slot - 1)) {
        found.missing = std::max(found.missing - left_[slot], 0.0);
        if (found.missing <= 0) found.slot = slot + shift;
      }
    });
    return found;
  }
  void take_early(int32_t begin, int32_t end, Cost time) {
    for_each_step(begin, end, [&](int32_t first, int32_t last, int32_t) {
      for (int32_t slot = next(first); slot < last && time > 0; slot = next(slot + 1)) {
        take(slot, time);
      }
    });
  }
  void take_late(int32_t begin, int32_t end, Cost time) {
    for_each_step_backwards(begin, end, [&](int32_t first, int32_t last, int32_t) {
      for (int32_t slot = previous(last - 1); slot >= first && time > 0;
           slot = previous(slot - 1)) {
        take(slot, time);
      }
    });
  }

 private:
  int32_t size() const { return static_cast<int32_t>(left_.size()); }
  // Calls f(first, end, what is to be added to these) for the slots of this step, and of the next.
  template <typename F>
  void for_each_step(int32_t begin, int32_t end, F&& f) {
    if (begin < size()) f(begin, std::min(end, size()), 0);
    if (end > size()) f(std::max(begin - size(), 0), end - size(), size());
  }
  template <typename F>
  void for_each_step_backwards(int32_t begin, int32_t end, F&& f) {
    if (end > size()) f(std::max(begin - size(), 0), end - size(), size());
    if (begin < size()) f(begin, std::min(end, size()), 0);
  }
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
