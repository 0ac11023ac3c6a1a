// Decisions for one step program, as they are followed: before an operator, what is recomputed in
// which order; after it, what is given up; and where everything lies.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace coop {

struct Schedule {
  // What a replay allocates, in order.
  struct Result {
    int32_t item;
    Bytes address;  // -1: anywhere
    bool wanted;    // else it is of no use then
    bool outlives;  // its storage, so it is to be kept though it is dead
  };
  struct Action {
    int32_t item;
    int32_t first_result;  // of a replay that makes the item, in `results`; -1: it is given up
  };

  std::vector<int32_t> first_before;  // by operator, and one more: in `before`
  std::vector<Action> before;
  std::vector<Result> results;
  std::vector<int32_t> first_after;  // by operator, and one more: in `after`
  std::vector<int32_t> after;        // items that are given up
  // By item, of what the program makes.
  std::vector<Bytes> addresses;
  std::vector<Bytes> other_addresses;  // where it lies in every other step, if it outlives its own
  std::vector<bool> outlives;          // its storage
  Cost replay_cost = 0;

  bool empty() const { return first_before.empty(); }
  // Of a replay, by its number in `before`.
  size_t end_results(size_t action) const {
    for (size_t next = action + 1; next < before.size(); ++next) {
      if (before[next].first_result >= 0) return before[next].first_result;
    }
    return results.size();
  }
};

}  // namespace coop
