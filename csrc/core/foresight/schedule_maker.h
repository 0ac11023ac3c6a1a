// Makes the schedule of a step program: what is recomputed (Scheduler), what that means exactly
// (Timeline), and where everything lies (placer), until they agree.
#pragma once

#include <vector>

#include "core/foresight/placer.h"
#include "core/foresight/schedule.h"
#include "core/foresight/step_program.h"

namespace coop {

// Empty: there is none that recomputes less than `most_cost`.
Schedule make_schedule(const StepProgram& program, const std::vector<Obstacle>& obstacles,
                       Bytes budget, Cost most_cost);

}  // namespace coop
