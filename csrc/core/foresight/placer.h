// Where everything lies, when it is known how long it stays. Each in turn, the largest first, gets
// the lowest room that is free for as long as it stays. If that leaves something over, other orders
// are tried.
#pragma once

#include <optional>
#include <vector>

#include "core/foresight/layout.h"
#include "core/foresight/schedule.h"
#include "core/foresight/step_log.h"
#include "core/foresight/timeline.h"
#include "core/types.h"

namespace coop {

// What found no place.
struct Unplaced {
  Bytes bytes;
  int32_t begin;  // moments
  int32_t end;
};

// The schedule that follows a timeline, or what of it does not fit. Roots that never leave lie
// where they are. `num_looks` grows by what was looked at.
std::optional<Schedule> place(const StepProgram& program, const Timeline& timeline,
                              const std::vector<KnownRoot>& roots,
                              const std::vector<Obstacle>& obstacles, Bytes arena_end,
                              std::vector<Unplaced>* unplaced, int64_t* num_looks);

}  // namespace coop
