// Where everything lies, when it is known how long it stays. Each in turn gets the lowest or the
// tightest room that is free for as long as it stays; which order is best differs from step to
// step, so a few are tried.
#pragma once

#include <vector>

#include "core/foresight/schedule.h"
#include "core/foresight/timeline.h"
#include "core/space/space.h"
#include "core/types.h"

namespace coop {

// Room that is not to be had until what lies there dies.
struct Obstacle {
  Bytes begin;
  Bytes end;
  StepProgram::Death death;
};

// What lies in memory at the end of the step that the program is of, and for how long it will in
// the next one.
std::vector<Obstacle> find_obstacles(const StepProgram& program, const Space& space, int64_t step);

// The schedule that follows a timeline. What does not fit has no address: `unplaced` are its bytes.
Schedule place(const StepProgram& program, const Timeline& timeline,
               const std::vector<Obstacle>& obstacles, Bytes arena_end, Bytes* unplaced);

}  // namespace coop
