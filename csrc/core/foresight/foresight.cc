#include "core/foresight/foresight.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/foresight/placer.h"

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
    if (!known->schedule.empty() && matches(*known)) follow(known.get());
  }
  if (followed_ == nullptr) ++journal_.stats.num_left;
}

void Foresight::follow(Known* known) {
  followed_ = tried_ = known;
  holds_ = known->schedule.outlives;
}

Value* Foresight::value_of(int32_t item) const {
  const auto num_made =
      static_cast<int32_t>(followed_->schedule.addresses.size() - followed_->roots.size());
  if (item < num_made) return item < log_.num_items() ? log_.value_of(item) : nullptr;
  const KnownRoot& root = followed_->roots[item - num_made];
  Value* value = graph_.value(root.id);
  return value->serial == root.serial ? value : nullptr;
}

Foresight::Known* Foresight::find_known() {
  for (const auto& known : known_) {
    if (known->marks == marks_) return known.get();
  }
  return nullptr;
}

// It is the step before that is judged; the journal counts the next one already.
std::vector<Relocation> Foresight::end_step(bool may_move) {
  if (!enabled_) return {};
  may_move_ = may_move;
  std::vector<Relocation> moves;
  const Cost cost_so_far = journal_.stats.replay_cost + journal_.stats.host_wait;
  const Cost cost = cost_so_far - cost_before_;
  const bool pressed = journal_.stats.num_evictions > evictions_before_;
  if (logging_ && pressed && !marks_.empty()) {
    log_.end();
    Known* known = find_known();
    if (known == nullptr) {
      if (known_.size() == kMostKnown) {
        const auto oldest = std::min_element(known_.begin(), known_.end(),
                                             [](auto& a, auto& b) { return a->used < b->used; });
        if (oldest->get() == made_for_) {
          making_ = nullptr;
          made_for_ = nullptr;
        }
        known_.erase(oldest);
      }
      known = known_.emplace_back(std::make_unique<Known>()).get();
      known->marks = std::move(marks_);
      known->online_cost = cost;
      if (num_guesses_ < kMostGuesses) {
        ++num_guesses_;
        known->is_guess = true;
        make(*known, /*may_stay=*/false);
      }
    } else {
      num_guesses_ -= std::exchange(known->is_guess, false);
      if (tried_ == known) {
        judge(*known, cost);
      } else if (known->schedule.empty() && known->num_made < 2) {
        known->online_cost = std::min(known->online_cost, cost);
        make(*known, /*may_stay=*/false);
      }
    }
    known->used = journal_.step;
    moves = take_made(known);
  }
  const Known* ended = is_following() ? followed_ : nullptr;  // as foreseen
  evictions_before_ = journal_.stats.num_evictions;
  cost_before_ = cost_so_far;
  // A step in which nothing is evicted needs no schedule, and is not worth noting.
  logging_ = pressed;
  marks_.clear();
  followed_ = tried_ = nullptr;
  if (!logging_) return moves;
  log_.begin();
  Known* last = nullptr;
  for (const auto& known : known_) {
    if (known->schedule.empty()) continue;
    if (last == nullptr || known->used > last->used) last = known.get();
  }
  settled_ = false;
  if (last == nullptr) return moves;
  follow(last);
  is_settling_ = !last->roots.empty() && (last != ended || is_new_);
  is_new_ = false;
  return moves;
}

// Never worse than without (Rule 17). Costs are the operators', so a step is judged by what it did,
// not by how busy the machine was.
void Foresight::judge(Known& known, Cost cost) {
  const bool went_as_foreseen = is_following();
  journal_.stats.num_followed += went_as_foreseen;
  const Cost step_cost = log_.program().cost();
  const bool same_costs = std::abs(step_cost - known.step_cost) <= 0.01 * known.step_cost;
  // To bring roots to their places takes a while, once.
  if (settled_) return;
  // What was under way when the step began is not the same in the first steps.
  const Cost slack = copy_room_.bytes > 0 ? 0.01 * step_cost : 0;
  if (same_costs && cost <= known.schedule.cost() * 1.01 + slack) {
    if (went_as_foreseen && !known.is_improved) improve(known);
    return;
  }
  if (known.step_cost > 0) known.online_cost *= step_cost / known.step_cost;
  known.step_cost = step_cost;
  const bool is_better = cost <= known.online_cost;
  // It is not followed while another one is made.
  if (!is_better) known.schedule = {};
  if (known.num_made < kMostMade) {
    // What lay in the way when it was made may lie elsewhere now.
    make(known, /*may_stay=*/went_as_foreseen && is_better);
  }
}

// Another schedule, or none, in the place of what it has. That may stay if there is no other.
void Foresight::make(Known& known, bool may_stay) {
  if (making_ != nullptr) return;
  ++known.num_made;
  known.step_cost = log_.program().cost();
  known.is_improved = false;
  may_stay_ = may_stay;
  begin_making(known, known.online_cost, kFirstLooks);
}

// Its schedule is good. There may be a better one.
void Foresight::improve(Known& known) {
  if (making_ != nullptr) return;
  known.is_improved = true;
  may_stay_ = true;
  begin_making(known, known.schedule.cost(), kMoreLooks);
}

// Roots that schedules move are in nobody's way. Where there are any, nothing else is moved; nor
// for a step that may not come again: what is moved may be in another one's way.
Layout Foresight::layout_of(const StepProgram& program, const std::vector<KnownRoot>& roots) const {
  const bool may_move = may_move_ && roots.empty() && !made_for_->is_guess;
  return find_layout(program, roots, space_, journal_.step, may_move);
}

void Foresight::begin_making(Known& known, Cost most_cost, int64_t most_looks) {
  made_for_ = &known;
  ScheduleTask task;
  task.program = log_.program_with_roots(&task.roots);
  task.obstacles = layout_of(task.program, task.roots).obstacles;
  task.budget = space_.budget();
  task.most_cost = most_cost;
  task.preferences = known.preferences;
  task.most_looks = most_looks;
  task.copy_room = copy_room_;
  num_waits_ = 0;
  making_ = std::make_unique<Making>(std::move(task), in_background_);
}

// The step that was seen is over. What was made is for a step before which the same lies in memory
// as then, once it is put together.
std::vector<Relocation> Foresight::take_made(const Known* seen) {
  if (making_ == nullptr || !making_->is_done()) return {};
  const ScheduleTask& task = making_->task();
  Layout layout;
  bool fits = seen == made_for_;
  if (fits) {
    layout = layout_of(task.program, task.roots);
    fits = layout.obstacles == task.obstacles;
  }
  if (!fits && ++num_waits_ < kMostWaits) return {};
  MadeSchedule made = making_->take();
  std::vector<KnownRoot> roots = task.roots;
  making_ = nullptr;
  Known& known = *std::exchange(made_for_, nullptr);
  if (!fits || (made.schedule.empty() && may_stay_)) return {};
  const bool is_made = !made.schedule.empty();
  journal_.stats.num_schedules += is_made;
  known.schedule = std::move(made.schedule);
  known.roots = std::move(roots);
  is_new_ = true;
  known.preferences = std::move(made.preferences);
  return is_made ? std::move(layout.moves) : std::vector<Relocation>();
}

// Whether the schedule makes all that is missing.
bool Foresight::brings_back(const std::vector<Value*>& inputs) const {
  const Schedule& schedule = followed_->schedule;
  const int32_t op = log_.position();
  auto is_made = [&](const Value* value) {
    const int32_t item = log_.item_of(value);
    for (int32_t i = schedule.first_before[op]; i < schedule.first_before[op + 1]; ++i) {
      const Schedule::Action& action = schedule.before[i];
      for (int32_t r = action.first_result; r < action.end_result; ++r) {
        if (schedule.results[r].item == item && schedule.results[r].wanted) return true;
      }
    }
    return false;
  };
  return std::all_of(inputs.begin(), inputs.end(),
                     [&](const Value* value) { return value->is_resident() || is_made(value); });
}

void Foresight::expect(const Value* value) {
  expected_ = {};
  if (!is_following() || action_ == nullptr || acting_ != here()) return;
  const Schedule& schedule = followed_->schedule;
  const Value* wanted = value_of(action_->item);
  if (wanted == nullptr || (wanted != value && wanted->recipe == nullptr)) return;
  if (wanted->recipe != value->recipe) return;
  expected_.place = here();
  expected_.begin = expected_.next = action_->first_result;
  expected_.end = action_->end_result;
  for (int32_t r = expected_.begin; r < expected_.end; ++r) {
    const Schedule::Result& result = schedule.results[r];
    if (result.wanted) holds_[result.item] = result.outlives;
  }
}

bool Foresight::takes(const Value* value) const {
  if (!is_expecting()) {
    return value->storage != nullptr || wants(value);
  }
  const int32_t item = log_.item_of(value);
  for (int32_t r = expected_.begin; r < expected_.end; ++r) {
    const Schedule::Result& result = followed_->schedule.results[r];
    if (result.item == item) return result.wanted;
  }
  return false;
}

bool Foresight::keeps_when_written(const Value* value) const {
  if (!is_expecting()) return false;
  const int32_t item = log_.item_of(value);
  for (int32_t r = expected_.begin; item >= 0 && r < expected_.end; ++r) {
    const Schedule::Result& result = followed_->schedule.results[r];
    if (log_.program().items[result.item].takes != item) continue;
    return result.address >= 0 && result.address != value->offset;
  }
  return false;
}

Foresight::Places Foresight::next_places() const {
  if (!is_following()) return {};
  const Schedule& schedule = followed_->schedule;
  const size_t item = log_.num_items();
  if (item >= schedule.addresses.size()) return {};
  return {schedule.addresses[item], schedule.other_addresses[item]};
}

// In the order in which the operator allocated when it ran first; what has no place is passed over.
Foresight::Places Foresight::next_places_of_replay(Bytes bytes) {
  if (!is_expecting()) return {};
  for (int32_t r = expected_.next; r < expected_.end; ++r) {
    const Schedule::Result& result = followed_->schedule.results[r];
    if (result.bytes != bytes) continue;
    expected_.next = r + 1;
    return {result.address};
  }
  return {};
}

}  // namespace coop
