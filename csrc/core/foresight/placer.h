// Where everything lies in a step whose stays in memory are known: the largest first, each at the
// lowest address of the smallest room that is free for as long as it stays.
#pragma once

#include <vector>

#include "core/foresight/schedule.h"
#include "core/foresight/step_program.h"
#include "core/space/space.h"
#include "core/types.h"

namespace coop {

// Room that is not to be had.
struct Obstacle {
  Bytes begin;
  Bytes end;
  int32_t until;  // this moment
};

// What lies in memory at the end of the step that the program is of, and for how long it will in
// the next one.
std::vector<Obstacle> find_obstacles(const StepProgram& program, const Space& space, int64_t step);

// Gives the stays their addresses; what does not fit has none. Returns how many of those there are.
int64_t place_stays(const StepProgram& program, const std::vector<Obstacle>& obstacles,
                    Bytes arena_end, Schedule& schedule);

}  // namespace coop
