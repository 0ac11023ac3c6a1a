// Makes the schedule of a step program: what is recomputed (Scheduler), what that means exactly
// (Timeline), and where everything lies (placer), until they agree. The first is found quickly.
// Then others are tried that differ a little from the best so far.
#pragma once

#include <atomic>
#include <vector>

#include "core/foresight/placer.h"
#include "core/foresight/preferences.h"
#include "core/foresight/schedule.h"
#include "core/foresight/scheduler.h"
#include "core/foresight/step_program.h"

namespace coop {

struct ScheduleTask {
  StepProgram program;
  std::vector<KnownRoot> roots;  // of the program
  std::vector<Obstacle> obstacles;
  Bytes budget = 0;
  Cost most_cost = 0;       // a schedule that takes as much besides the step is of no use
  Preferences preferences;  // by which one was found before
  int64_t most_looks = 0;   // about how long it may go on: what it looks at
  CopyRoom copy_room = {};
};

struct MadeSchedule {
  Schedule schedule;        // empty: there is none
  Preferences preferences;  // by which it was found
};

// Ends soon when it is told to stop.
MadeSchedule make_schedule(const ScheduleTask& task, const std::atomic<bool>& stop);

}  // namespace coop
