#include "core/foresight/foresight.h"

#include <algorithm>
#include <iterator>

#include "core/foresight/placer.h"
#include "core/foresight/scheduler.h"

namespace coop {

// Another step that is known may have begun in the same way.
void Foresight::compare(uint64_t mark) {
  marks_.push_back(mark);
  if (!is_following()) return;
  const size_t last = marks_.size() - 1;
  auto matches = [&](const Known& known) {
    return known.marks.size() > last && known.marks[last] == mark;
  };
  if (matches(*followed_)) return;
  followed_ = nullptr;
  for (const auto& known : known_) {
    if (!known->schedule.empty() && matches(*known)) followed_ = tried_ = known.get();
  }
  if (followed_ == nullptr) ++journal_.stats.num_left;
}

Foresight::Known* Foresight::find_known() {
  for (const auto& known : known_) {
    if (known->marks == marks_) return known.get();
  }
  return nullptr;
}

// It is the step before that is judged; the journal counts the next one already.
void Foresight::end_step() {
  if (!enabled_) return;
  const Cost replay_cost = journal_.stats.replay_cost - replay_cost_before_;
  const bool pressed = journal_.stats.num_evictions > evictions_before_;
  if (logging_ && pressed && !marks_.empty()) {
    Known* known = find_known();
    if (known == nullptr) {
      if (known_.size() == kMostKnown) {
        known_.erase(std::min_element(known_.begin(), known_.end(),
                                      [](auto& a, auto& b) { return a->used < b->used; }));
      }
      known = known_.emplace_back(std::make_unique<Known>()).get();
      known->marks = std::move(marks_);
      known->best_cost = replay_cost;
    } else if (tried_ == known) {
      judge(*known, replay_cost);
    } else if (!known->is_settled) {
      known->best_cost = std::min(known->best_cost, replay_cost);
      known->is_settled = !make_schedule(*known);
    }
    known->used = journal_.step;
  }
  evictions_before_ = journal_.stats.num_evictions;
  replay_cost_before_ = journal_.stats.replay_cost;
  // A step in which nothing is evicted needs no schedule, and is not worth noting.
  logging_ = pressed;
  marks_.clear();
  followed_ = tried_ = nullptr;
  expected_.clear();
  if (!logging_) return;
  log_.begin();
  for (const auto& known : known_) {
    if (known->schedule.empty()) continue;
    if (followed_ == nullptr || known->used > followed_->used) followed_ = tried_ = known.get();
  }
}

// Never worse than without (Rule 17). Costs are the operators', so a step is judged by what it did,
// not by how busy the machine was. What was not as foreseen is tried with more of a reserve, and
// the best is kept.
void Foresight::judge(Known& known, Cost replay_cost) {
  journal_.stats.num_followed += is_following();
  if (replay_cost < known.best_cost) {
    known.best_cost = replay_cost;
    known.best = known.schedule;
  }
  if (known.is_settled) return;
  const bool as_foreseen = replay_cost <= known.schedule.replay_cost * 1.01;
  if (!as_foreseen && make_schedule(known)) return;
  known.is_settled = true;
  known.schedule = std::move(known.best);
}

// The next variant that is worth a try. False: there is none left.
bool Foresight::make_schedule(Known& known) {
  struct Variant {
    double reserve;  // share of the budget, for fragmentation
    bool
        places;  // everything has its place; else the arena finds one, and moves what is in the way
  };
  constexpr Variant kVariants[] = {{0.02, false}, {0.02, true}, {0.05, false}, {0.05, true}};
  // The placer compares each with each.
  constexpr int32_t kMostPlaced = 40000;
  const StepProgram& program = log_.program();
  while (known.num_tried < std::size(kVariants)) {
    const Variant& variant = kVariants[known.num_tried++];
    if (variant.places && log_.num_items() > kMostPlaced) continue;
    const auto room =
        static_cast<Bytes>(static_cast<double>(space_.budget()) * (1 - variant.reserve));
    Scheduler scheduler(program, room);
    if (!scheduler.run()) continue;
    Schedule schedule = scheduler.schedule();
    if (schedule.replay_cost >= known.best_cost) continue;
    if (variant.places) {
      place_stays(program, find_obstacles(program, space_, journal_.step), space_.arena().end(),
                  schedule);
    }
    known.schedule = std::move(schedule);
    ++journal_.stats.num_schedules;
    return true;
  }
  return false;
}

void Foresight::expect(const Recipe& recipe) {
  expected_.clear();
  if (!is_following()) return;
  for (const Value* value : recipe.outputs) {
    if (value == nullptr || value->is_resident()) continue;
    const Schedule::Stay* stay =
        followed_->schedule.stay_from(log_.item_of(value), log_.position());
    if (stay != nullptr && stay->address >= 0) expected_.push_back({value->bytes, stay->address});
  }
}

Foresight::Places Foresight::next_places() const {
  if (!is_following()) return {};
  const Schedule::Stay* stay = followed_->schedule.stay_from(log_.num_items(), log_.position());
  if (stay == nullptr) return {};
  return {stay->address, stay->other_address};
}

// A replay allocates its results in any order, and temporaries too.
Foresight::Places Foresight::next_places_of_replay(Bytes bytes) {
  for (Expected& expected : expected_) {
    if (expected.bytes != bytes) continue;
    expected.bytes = -1;
    return {expected.address};
  }
  return {};
}

}  // namespace coop
