#include "core/foresight/schedule_maker.h"

#include <optional>
#include <utility>

#include "core/foresight/scheduler.h"
#include "core/foresight/timeline.h"

namespace coop {

namespace {

// How often everything is tried with less room, and what is left free then each time.
constexpr int kMostRounds = 16;
constexpr double kReserve = 0.005;
// How often what is given up is looked at again, and the estimates are brought up to date.
constexpr int kMostCycles = 6;
constexpr int kMostUpdates = 400;

// From where it stands; nothing if it does not fit.
std::optional<Timeline> fit(const StepProgram& program, Scheduler& scheduler, Bytes room) {
  Timeline timeline(program, scheduler.needs());
  for (int updates = 0; timeline.peak() > room; ++updates) {
    scheduler.update(timeline);
    if (updates == kMostUpdates || !scheduler.fit(room)) return std::nullopt;
    timeline = Timeline(program, scheduler.needs());
  }
  return timeline;
}

// What was given up early may have room after all, since more was given up for others later. Keeps
// that, which may be too much, and goes on from there, as long as it pays.
std::optional<Timeline> fit_well(const StepProgram& program, Scheduler& scheduler, Bytes room) {
  std::optional<Timeline> best = fit(program, scheduler, room);
  if (!best) return best;
  scheduler.update(*best);
  for (int cycle = 0; cycle < kMostCycles; ++cycle) {
    if (!scheduler.keep_what_fits(Timeline(program, scheduler.needs()), room)) break;
    std::optional<Timeline> next = fit(program, scheduler, room);
    if (!next || next->replay_cost() >= best->replay_cost()) break;
    best = std::move(next);
    scheduler.update(*best);
  }
  scheduler.update(*best);
  return best;
}

}  // namespace

Schedule make_schedule(const StepProgram& program, const std::vector<Obstacle>& obstacles,
                       Bytes budget, Cost most_cost) {
  Scheduler scheduler(program);
  Bytes room = budget;
  for (int round = 0; round < kMostRounds; ++round) {
    const std::optional<Timeline> timeline = fit_well(program, scheduler, room);
    if (!timeline || !timeline->is_whole() || timeline->replay_cost() >= most_cost) return {};
    Bytes unplaced = 0;
    Schedule schedule = place(program, *timeline, obstacles, budget, &unplaced);
    if (unplaced == 0) return schedule;
    room -= static_cast<Bytes>(static_cast<double>(budget) * kReserve);
  }
  return {};
}

}  // namespace coop
