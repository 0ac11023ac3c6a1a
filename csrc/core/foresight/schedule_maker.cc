#include "core/foresight/schedule_maker.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/foresight/scheduler.h"
#include "core/foresight/timeline.h"

namespace coop {

namespace {

// How often the first is tried in other ways, and what is left free in all of them then.
constexpr int kMostRounds = 32;
constexpr double kVeryNear = 0.0005;
constexpr double kReserve = 0.005;
// What is left free more when something better found no place.
constexpr double kLessRoom = 0.002;
// How often what is given up is looked at again, and the estimates are brought up to date.
constexpr int kMostCycles = 6;
constexpr int kMostUpdates = 400;
// What recomputes so many times as much as the best will not get better than that.
constexpr double kHopeless = 1.5;
// So many in a row that are not better, and it ends.
constexpr int kMostInVain = 150;
// After so many, every other one begins anew.
constexpr int kInVain = 30;
// How often what found no place is made to fit by giving up more there.
constexpr int kMostRepairs = 3;

// What the link's time may be worth: so many times what is expected.
constexpr double kLinkPrices[] = {1, 0.5, 2, 0.2, 5, 0.05};

// What a timeline takes, for each of its moments, as looks.
constexpr int64_t kLooksAMoment = 40;

// Always the same numbers: schedules depend on nothing but the step and the budget.
class Random {
 public:
  uint32_t below(uint32_t end) { return static_cast<uint32_t>(next() >> 32) % end; }
  double share() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // About normal, with a standard deviation of one.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += share();
    return sum;
  }

 private:
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint64_t state_ = 0;
};

// What lies in memory and holds no values: the rest of the extents for small ones.
Bytes unused_bytes(const ScheduleTask& task) {
  Bytes bytes = -task.program.base;
  for (const Obstacle& obstacle : task.obstacles) bytes += obstacle.end - obstacle.begin;
  for (const StepProgram::Death& death : task.program.older_deaths) {
    if (is_at_once(death)) bytes += death.bytes;
  }
  return std::max<Bytes>(bytes, 0);
}

class Search {
 public:
  // From the best that there is. With copies, or without.
  Search(const ScheduleTask& task, MadeSchedule best, const CopyRoom& copy_room,
         const std::atomic<bool>& stop)
      : task_(task),
        program_(task.program),
        stop_(stop),
        room_(task.budget - unused_bytes(task)),
        copy_room_(copy_room),
        best_(std::move(best)),
        least_(best_.schedule.empty() ? task.most_cost : best_.schedule.cost()) {
    best_.preferences.weights.resize(program_.items.size(), 1);
    find_classes();
  }

  MadeSchedule run() {
    Preferences next = best_.preferences;
    const Preferences first = {std::vector<double>(program_.items.size(), 1)};
    const bool is_found = has_copies() && try_link_prices(next);
    for (int round = 0; !is_found && round < kMostRounds && try_out(next) != Outcome::kBetter;
         ++round) {
      next.near = round % 2 == 0 ? kVeryNear : best_.preferences.near;
      next.first_operator = round % 4 < 2 ? hardest_operator() : best_.preferences.first_operator;
      if (round % 4 == 3) next.room -= kReserve;
    }
    double room = best_.preferences.room;
    for (int in_vain = 0; in_vain < kMostInVain && !is_over(); ++in_vain) {
      // Now and then from the beginning: near the best there may be nothing better.
      const bool anew = in_vain >= kInVain && random_.below(2) == 0;
      next = vary(anew ? first : best_.preferences);
      for (uint32_t i = anew ? random_.below(3) : 0; i > 0; --i) next = vary(std::move(next));
      next.room = std::min(next.room, room);
      switch (try_out(next)) {
        case Outcome::kBetter:
          in_vain = 0;
          room = std::max(room, best_.preferences.room);
          break;
        case Outcome::kUnplaced:
          room -= kLessRoom;
          break;
        case Outcome::kWorse:
          break;
      }
    }
    return std::move(best_);
  }

 private:
  enum class Outcome { kBetter, kWorse, kUnplaced };

  bool has_copies() const { return copy_room_.bytes > 0; }
  bool is_over() const {
    return num_looks_ > task_.most_looks || stop_.load(std::memory_order_relaxed);
  }
  void find_classes();
  bool try_link_prices(Preferences preferences);
  int32_t hardest_operator() const;
  Preferences vary(Preferences preferences);
  Outcome try_out(const Preferences& preferences);
  std::optional<Timeline> fit(Scheduler& scheduler, Bytes room);
  std::optional<Timeline> fit_well(Scheduler& scheduler, Bytes room);
  void reserve(const Timeline& timeline, const std::vector<Unplaced>& unplaced);

  const ScheduleTask& task_;
  const StepProgram& program_;
  const std::atomic<bool>& stop_;
  const Bytes room_;  // for values
  const CopyRoom copy_room_;
  MadeSchedule best_;
  Cost least_;  // what the best takes besides the step
  int64_t num_looks_ = 0;
  Random random_;
  // Layers repeat: what is of the same size and made at the same cost is treated alike.
  std::vector<int32_t> class_of_;  // by item
  int32_t num_classes_ = 0;
  std::vector<Bytes> reserved_;  // by operator
  std::set<Cost> tried_;         // what those take that were looked at
};

void Search::find_classes() {
  std::map<std::pair<Bytes, Cost>, int32_t> classes;
  for (const StepProgram::Item& item : program_.items) {
    const Cost cost = item.maker < 0 ? 0 : program_.operators[item.maker].cost;
    const auto next = static_cast<int32_t>(classes.size());
    class_of_.push_back(classes.emplace(std::make_pair(item.bytes, cost), next).first->second);
  }
  num_classes_ = static_cast<int32_t>(classes.size());
}

// The link's time is worth what it saves elsewhere. About what a byte costs now: all that does not
// fit is given up once. Whether anything was better.
bool Search::try_link_prices(Preferences preferences) {
  const Link link(copy_room_.link, /*is_on=*/true);
  const Bytes excess = Timeline(program_, Scheduler(program_, preferences).needs()).peak() - room_;
  if (excess <= 0 || least_ <= 0) return false;
  bool is_better = false;
  const double price = least_ / (link.out_cost(excess) + link.in_cost(excess));
  for (const double factor : kLinkPrices) {
    preferences.link = price * factor;
    is_better |= try_out(preferences) == Outcome::kBetter;
    if (is_over()) break;
  }
  return is_better;
}

// That needs the most, whatever else is given up.
int32_t Search::hardest_operator() const {
  int32_t hardest = 0;
  Bytes most = 0;
  for (int32_t op = 0; op < program_.size(); ++op) {
    Bytes bytes = program_.operators[op].temporary;
    program_.for_each_use(op, [&](int32_t item) { bytes += program_.items[item].bytes; });
    for (int32_t i = program_.operators[op].first_item; i < program_.end_items(op); ++i) {
      if (!program_.is_temporary(i)) bytes += program_.items[i].bytes;
    }
    if (bytes <= most) continue;
    most = bytes;
    hardest = op;
  }
  return hardest;
}

Preferences Search::vary(Preferences preferences) {
  std::vector<double> factors(num_classes_, 1);
  switch (random_.below(has_copies() ? 6 : 5)) {
    case 0:
      for (double& factor : factors) factor = std::exp(0.3 * random_.normal());
      break;
    case 1:
      for (uint32_t i = random_.below(3) + 1; i > 0; --i) {
        factors[random_.below(num_classes_)] = std::exp(random_.normal());
      }
      break;
    case 2:
      preferences.near = 0.0005 * std::pow(300, random_.share());
      break;
    case 3:
      preferences.instead = std::exp(0.5 * random_.normal());
      preferences.first_operator =
          random_.below(2) == 0 ? -1 : static_cast<int32_t>(random_.below(program_.size()));
      break;
    case 4:
      preferences.room = 1 - 0.15 * random_.share() * random_.share();
      break;
    case 5:
      preferences.link *= std::exp(random_.normal());
      break;
  }
  for (size_t i = 0; i < class_of_.size(); ++i) preferences.weights[i] *= factors[class_of_[i]];
  return preferences;
}

// From where it stands; nothing if it does not fit.
std::optional<Timeline> Search::fit(Scheduler& scheduler, Bytes room) {
  Timeline timeline(program_, scheduler.needs(), reserved_, copy_room_.link);
  for (int updates = 0; timeline.peak() > room; ++updates) {
    scheduler.update(timeline);
    if (updates == kMostUpdates || timeline.cost() > kHopeless * least_) return std::nullopt;
    if (stop_.load(std::memory_order_relaxed) || !scheduler.fit(room)) return std::nullopt;
    num_looks_ += kLooksAMoment * timeline.num_moments();
    timeline = Timeline(program_, scheduler.needs(), reserved_, copy_room_.link);
  }
  num_looks_ += kLooksAMoment * timeline.num_moments();
  return timeline;
}

// What was given up early may have room after all, since more was given up for others later. Keeps
// that, which may be too much, and goes on from there, as long as it pays.
std::optional<Timeline> Search::fit_well(Scheduler& scheduler, Bytes room) {
  std::optional<Timeline> best = fit(scheduler, room);
  if (!best) return best;
  scheduler.update(*best);
  for (int cycle = 0; cycle < kMostCycles; ++cycle) {
    if (!scheduler.keep_what_fits(Timeline(program_, scheduler.needs(), reserved_, copy_room_.link),
                                  room))
      break;
    std::optional<Timeline> next = fit(scheduler, room);
    if (!next || next->cost() >= best->cost()) break;
    best = std::move(next);
    scheduler.update(*best);
  }
  scheduler.update(*best);
  return best;
}

// What has no place is too much then, whatever the bytes say.
void Search::reserve(const Timeline& timeline, const std::vector<Unplaced>& unplaced) {
  reserved_.resize(program_.size(), 0);
  const auto least = static_cast<Bytes>(static_cast<double>(room_) * kReserve);
  std::vector<bool> is_more(program_.size(), false);
  for (const Unplaced& none : unplaced) {
    const int32_t last = timeline.operator_at(none.end - 1);
    for (int32_t op = timeline.operator_at(none.begin); op <= last; ++op) {
      if (!is_more[op]) reserved_[op] += least;
      is_more[op] = true;
      reserved_[op] += none.bytes;
    }
  }
}

Search::Outcome Search::try_out(const Preferences& preferences) {
  reserved_.clear();
  const auto room = static_cast<Bytes>(static_cast<double>(room_) * preferences.room);
  Scheduler scheduler(program_, preferences, copy_room_);
  std::optional<Timeline> timeline = fit_well(scheduler, room);
  num_looks_ += scheduler.num_looks();
  // Many preferences mean the same.
  if (!timeline || !tried_.insert(timeline->cost()).second) return Outcome::kWorse;
  for (int repairs = 0; timeline && timeline->is_whole(); ++repairs) {
    if (timeline->cost() >= least_) break;
    std::vector<Unplaced> unplaced;
    std::optional<Schedule> schedule = place(program_, *timeline, task_.roots, task_.obstacles,
                                             task_.budget, &unplaced, &num_looks_);
    if (schedule) {
      least_ = timeline->cost();
      best_ = {std::move(*schedule), preferences};
      return Outcome::kBetter;
    }
    if (repairs == kMostRepairs || stop_.load(std::memory_order_relaxed)) return Outcome::kUnplaced;
    reserve(*timeline, unplaced);
    timeline = fit_well(scheduler, room);
  }
  return reserved_.empty() ? Outcome::kWorse : Outcome::kUnplaced;
}

}  // namespace

MadeSchedule make_schedule(const ScheduleTask& task, const std::atomic<bool>& stop) {
  if (task.program.items.empty()) return {};  // nothing was made that could be given up
  MadeSchedule best = Search(task, {{}, task.preferences}, {}, stop).run();
  if (task.copy_room.bytes == 0) return best;
  return Search(task, std::move(best), task.copy_room, stop).run();
}

}  // namespace coop
