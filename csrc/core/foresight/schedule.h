// Decisions for one step program: what is given up after which operator, and until when what is
// dead, or was made by a replay, stays.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace coop {

struct Schedule {
  // One stay in memory: made, or made again, at operator `begin`; given up after `end`.
  struct Stay {
    int32_t begin;
    int32_t end;
    Bytes address = -1;        // -1: anywhere
    Bytes other_address = -1;  // where it lies in every other step, if it outlives its own
    bool passing = false;
  };

  std::vector<int32_t> first_stay;     // by item, and one more
  std::vector<Stay> stays;             // in order
  std::vector<int32_t> first_release;  // by operator, and one more
  std::vector<int32_t> releases;       // items given up after that operator
  bool has_places = false;
  Cost replay_cost = 0;  // as foreseen
  Bytes peak = 0;

  bool empty() const { return first_stay.empty(); }
  template <typename F>
  void for_each_released(int32_t op, F&& f) const {
    for (int32_t i = first_release[op]; i < first_release[op + 1]; ++i) f(releases[i]);
  }
  // The stay that begins with the operator; null: none does.
  const Stay* stay_from(int32_t item, int32_t op) const {
    if (item < 0 || item + 1 >= static_cast<int32_t>(first_stay.size())) return nullptr;
    for (int32_t i = first_stay[item]; i < first_stay[item + 1]; ++i) {
      if (stays[i].begin == op) return &stays[i];
    }
    return nullptr;
  }
  // Whether it is wanted in memory while operator `op` runs, or before it does.
  bool wants(int32_t item, int32_t op) const {
    if (item < 0 || item + 1 >= static_cast<int32_t>(first_stay.size())) return false;
    for (int32_t i = first_stay[item]; i < first_stay[item + 1]; ++i) {
      if (stays[i].begin > op) return false;
      if (stays[i].end >= op) return !stays[i].passing;
    }
    return false;
  }
};

}  // namespace coop
