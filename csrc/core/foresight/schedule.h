// Decisions for one step program, as they are followed: before an operator, what is recomputed in
// which order, and what begins to come back; after it, what is given up, and what begins to leave;
// and where everything lies.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace coop {

struct Schedule {
  // What a replay or a copy in allocates, in order.
  struct Result {
    int32_t item;
    Bytes address;  // -1: anywhere, or, at the beginning of the step, nowhere
    bool wanted;    // else it is of no use then
    bool outlives;  // its storage, so it is to be kept though it is dead
    Bytes bytes;
  };
  struct Action {
    enum class Kind : uint8_t {
      kReplay,
      kGiveUp,
      kCopyOut,  // it begins: its bytes stay until the item is given up
      kCopyIn,   // it begins: who reads the bytes waits for them
    };
    Kind kind;
    int32_t item;
    // What it allocates, in `results`.
    int32_t first_result = 0;
    int32_t end_result = 0;

    bool brings_back() const { return kind == Kind::kReplay || kind == Kind::kCopyIn; }
  };

  std::vector<int32_t> first_before;  // by operator, and one more: in `before`
  std::vector<Action> before;
  std::vector<Result> results;
  std::vector<int32_t> first_after;  // by operator, and one more: in `after`
  std::vector<Action> after;
  // By item, of what the program makes.
  std::vector<Bytes> addresses;
  std::vector<Bytes> other_addresses;  // where it lies in every other step, if it outlives its own
  std::vector<bool> outlives;          // its storage
  // Where roots are when the step begins: as copies in. Others stay where they are.
  std::vector<Action> roots;
  Cost replay_cost = 0;
  Cost waited = 0;  // for copies

  bool empty() const { return first_before.empty(); }
  // What the step takes besides its operators.
  Cost cost() const { return replay_cost + waited; }
};

}  // namespace coop
