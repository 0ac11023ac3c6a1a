#include "core/foresight/placer.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace coop {

namespace {

// Bytes for a while.
struct Rectangle {
  Bytes bytes = 0;
  int32_t begin = 0;  // moments
  int32_t end = 0;
  // What an operator allocates has a number. At its last moment it is gone for what is allocated
  // after it was freed.
  int32_t number = -1;
  int32_t freed = std::numeric_limits<int32_t>::max();
  int32_t again = 0;  // it is there in moments [0, again) too: what outlives its step
  Bytes address = -1;

  bool meets(const Rectangle& other) const {
    if (begin < other.again || other.begin < again) return true;
    if (begin >= other.end || other.begin >= end) return false;
    return !is_gone_for(other) && !other.is_gone_for(*this);
  }
  bool is_gone_for(const Rectangle& other) const {
    return other.begin == end - 1 && other.number >= freed;
  }
  double lifetime() const { return end - begin; }
};

// In which orders they are placed, the highest number first.
constexpr double (*kOrders[])(const Rectangle&) = {
    [](const Rectangle& r) { return static_cast<double>(r.bytes); },
    [](const Rectangle& r) { return static_cast<double>(r.bytes) * r.bytes * r.lifetime(); },
    [](const Rectangle& r) { return static_cast<double>(r.bytes) * r.lifetime(); },
    [](const Rectangle& r) { return r.lifetime(); },
};

// One that has an address, for part of its time: what is looked at most often.
struct Placed {
  Bytes address;
  Bytes end_address;
  int32_t begin;
  int32_t end;
  const Rectangle* rectangle;
};

class Placer {
 public:
  Placer(const StepProgram& program, const Timeline& timeline, const std::vector<KnownRoot>& roots,
         const std::vector<Obstacle>& obstacles, Bytes arena_end)
      : program_(program), timeline_(timeline), roots_(roots), arena_end_(arena_end) {
    for (const Obstacle& obstacle : obstacles) {
      Rectangle& taken = fixed_.emplace_back();
      taken.bytes = obstacle.end - obstacle.begin;
      taken.end = timeline.death_moment(obstacle.death.op, obstacle.death.freed);
      taken.freed = obstacle.death.freed;
      taken.address = obstacle.begin;
    }
    add_stays();
    add_replays();
  }

  // Returns what has no place.
  std::vector<Unplaced> place();
  int64_t num_looks() const { return num_looks_; }

  Schedule schedule() const;

 private:
  void add_stays();
  void add_root_stays(int32_t item);
  void add_root_actions(Schedule& schedule) const;
  void add_replays();
  void add(const Rectangle& rectangle);
  void find_room(Rectangle& next);
  Bytes place(double (*weight)(const Rectangle&));
  Bytes address_of(int32_t rectangle) const {
    return rectangle < 0 ? -1 : rectangles_[rectangle].address;
  }

  const StepProgram& program_;
  const Timeline& timeline_;
  const std::vector<KnownRoot>& roots_;
  const Bytes arena_end_;
  int64_t num_looks_ = 0;
  std::vector<Rectangle> fixed_;
  std::vector<Placed> placed_;  // in order of addresses
  std::vector<Rectangle> rectangles_;
  std::vector<int32_t> of_stay_;  // its rectangle; -1: none
  std::vector<int32_t> other_;    // of what outlives its step: the place of every other step
  // Of replays: what they allocate, and its rectangle.
  std::vector<int32_t> first_result_;
  std::vector<std::pair<int32_t, int32_t>> results_;
};

void Placer::add_stays() {
  const std::vector<Timeline::Stay>& stays = timeline_.stays();
  of_stay_.assign(stays.size(), -1);
  other_.assign(program_.items.size(), -1);
  std::vector<StepProgram::Death> deaths = program_.older_deaths;
  for (size_t s = 0; s < stays.size(); ++s) {
    const Timeline::Stay& stay = stays[s];
    const StepProgram::Item& item = program_.items[stay.item];
    if (item.bytes == 0 || stay.begin >= stay.end || program_.is_root(stay.item)) continue;
    if (stay.takes >= 0 && of_stay_[stay.takes] >= 0) {
      of_stay_[s] = of_stay_[stay.takes];
      Rectangle& whole = rectangles_[of_stay_[s]];
      whole.end = std::max(whole.end, stay.end);
      whole.freed = std::numeric_limits<int32_t>::max();
    } else {
      Rectangle next;
      next.bytes = item.bytes;
      next.begin = stay.begin;
      next.end = stay.end;
      // A copy in is allocated before all that the operator makes.
      next.number = stay.copied ? -1 : stay.item;
      if (!stay.replayed && !stay.copied &&
          stay.end == timeline_.run_moment(std::min(item.end, program_.size() - 1)) + 1)
        next.freed = item.freed;
      of_stay_[s] = static_cast<int32_t>(rectangles_.size());
      rectangles_.push_back(next);
    }
    const bool lasts = item.end == StepProgram::kNever && stay.end == timeline_.num_moments();
    if (!lasts) continue;
    const StepProgram::Death death = take_death(deaths, item.bytes);
    if (death.op == StepProgram::kNever) continue;
    Rectangle& own = rectangles_[of_stay_[s]];
    if (death.freed <= stay.item) {
      own.again = timeline_.death_moment(death.op, death.freed);
      continue;
    }
    // It is still there when its successor is made.
    Rectangle other = own;
    other.begin = 0;
    other_[stay.item] = static_cast<int32_t>(rectangles_.size());
    rectangles_.push_back(other);
  }
  for (int32_t item = program_.num_made(); item < program_.num_items(); ++item) {
    add_root_stays(item);
  }
}

// What goes over the end of the step is one stay, at one place.
void Placer::add_root_stays(int32_t item) {
  const int32_t first = timeline_.first_stay(item);
  const int32_t last = timeline_.end_stays(item) - 1;
  const int32_t moments = timeline_.num_moments();
  const bool is_home = !timeline_.stays()[first].copied;
  const Bytes address = roots_[item - program_.num_made()].address;
  Rectangle next;
  next.bytes = program_.items[item].bytes;
  if (is_home && first == last && address != Arena::kNowhere) {
    next.end = moments;
    next.address = address;
    fixed_.push_back(next);
    return;
  }
  for (int32_t s = is_home && first < last ? first + 1 : first; s <= last; ++s) {
    const Timeline::Stay& stay = timeline_.stays()[s];
    next.begin = stay.begin < 0 ? moments + stay.begin : stay.begin;
    next.end = stay.begin < 0 ? moments : std::min(stay.end, moments);
    next.again = stay.begin < 0 ? stay.end : std::max(stay.end - moments, 0);
    if (is_home && s == last && first < last) {
      next.again = timeline_.stays()[first].end;
      of_stay_[first] = static_cast<int32_t>(rectangles_.size());
    }
    of_stay_[s] = static_cast<int32_t>(rectangles_.size());
    rectangles_.push_back(next);
  }
}

void Placer::add_root_actions(Schedule& schedule) const {
  for (int32_t item = program_.num_made(); item < program_.num_items(); ++item) {
    const int32_t first = timeline_.first_stay(item);
    if (of_stay_[first] < 0) continue;  // it stays where it is
    const Timeline::Stay& stay = timeline_.stays()[first];
    const bool is_there = !stay.copied || stay.begin < 0;
    const auto result = static_cast<int32_t>(schedule.results.size());
    schedule.results.push_back({item, is_there ? address_of(of_stay_[first]) : -1,
                                /*wanted=*/true, /*outlives=*/false, program_.items[item].bytes});
    schedule.roots.push_back({Schedule::Action::Kind::kCopyIn, item, result, result + 1});
  }
}

void Placer::add_replays() {
  const std::vector<Timeline::Replay>& replays = timeline_.replays();
  const std::vector<Timeline::Stay>& stays = timeline_.stays();
  for (size_t r = 0; r < replays.size(); ++r) {
    first_result_.push_back(static_cast<int32_t>(results_.size()));
    if (!replays[r].live) continue;
    const int32_t maker = replays[r].maker;
    const int32_t moment = timeline_.moment_of(r);
    for (int32_t i = program_.operators[maker].first_item; i < program_.end_items(maker); ++i) {
      const StepProgram::Item& item = program_.items[i];
      if (item.bytes == 0 || (item.maker != maker && !program_.is_temporary(i))) continue;
      int32_t stay = -1;
      for (int32_t s = timeline_.first_stay(i); s < timeline_.end_stays(i); ++s) {
        if (stays[s].begin == moment && stays[s].end > moment) stay = s;
      }
      if (stay >= 0) {
        results_.emplace_back(i, of_stay_[stay]);
        continue;
      }
      if (item.takes >= 0) continue;
      Rectangle next;
      next.bytes = item.bytes;
      next.begin = moment;
      next.end = moment + 1;
      next.number = i;
      if (program_.is_temporary(i)) next.freed = item.freed;
      results_.emplace_back(i, static_cast<int32_t>(rectangles_.size()));
      rectangles_.push_back(next);
    }
  }
  first_result_.push_back(static_cast<int32_t>(results_.size()));
}

void Placer::add(const Rectangle& rectangle) {
  const Bytes end = rectangle.address + rectangle.bytes;
  auto insert = [&](int32_t from, int32_t to) {
    const Placed next{rectangle.address, end, from, to, &rectangle};
    placed_.insert(
        std::upper_bound(placed_.begin(), placed_.end(), next,
                         [](const Placed& a, const Placed& b) { return a.address < b.address; }),
        next);
  };
  insert(rectangle.begin, rectangle.end);
  if (rectangle.again > 0) insert(0, rectangle.again);
}

void Placer::find_room(Rectangle& next) {
  Bytes top = 0;
  auto is_in_the_way = [&](const Placed& other) {
    const bool now = other.begin < next.end && next.begin < other.end;
    return (now || other.begin < next.again) && other.rectangle->meets(next);
  };
  for (const Placed& other : placed_) {
    ++num_looks_;
    if (!is_in_the_way(other)) continue;
    if (other.address - top >= next.bytes) break;
    top = std::max(top, other.end_address);
  }
  if (top + next.bytes <= arena_end_) next.address = top;
}

// Each at the lowest address, in that order. Returns the bytes that have no place.
Bytes Placer::place(double (*weight)(const Rectangle&)) {
  placed_.clear();
  for (const Rectangle& rectangle : fixed_) add(rectangle);
  std::vector<double> weights;
  for (const Rectangle& rectangle : rectangles_) weights.push_back(weight(rectangle));
  std::vector<int32_t> sorted(rectangles_.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](int32_t a, int32_t b) { return weights[a] > weights[b]; });
  Bytes left = 0;
  for (const int32_t i : sorted) {
    Rectangle& next = rectangles_[i];
    next.address = -1;
    find_room(next);
    if (next.address >= 0) {
      add(next);
    } else {
      left += next.bytes;
    }
  }
  return left;
}

std::vector<Unplaced> Placer::place() {
  std::vector<Rectangle> best;
  Bytes least = std::numeric_limits<Bytes>::max();
  for (const auto& order : kOrders) {
    const Bytes left = place(order);
    if (left == 0) return {};
    if (left >= least) continue;
    least = left;
    best = rectangles_;
  }
  std::vector<Unplaced> unplaced;
  for (const Rectangle& rectangle : best) {
    if (rectangle.address >= 0) continue;
    unplaced.push_back({rectangle.bytes, rectangle.begin, rectangle.end});
  }
  return unplaced;
}

Schedule Placer::schedule() const {
  Schedule schedule;
  const std::vector<Timeline::Stay>& stays = timeline_.stays();
  const std::vector<Timeline::Replay>& replays = timeline_.replays();
  const int32_t size = program_.size();
  schedule.addresses.assign(program_.items.size(), -1);
  schedule.other_addresses.assign(program_.items.size(), -1);
  schedule.outlives.assign(program_.items.size(), false);
  using Kind = Schedule::Action::Kind;
  // By the moment after which they come.
  std::vector<std::vector<Schedule::Action>> after(timeline_.num_moments());
  // By the moment before which they come: stays.
  std::vector<std::vector<int32_t>> copied_in(timeline_.num_moments());
  for (size_t t = 0; t < timeline_.trips().size(); ++t) {
    const Trip& trip = timeline_.trips()[t];
    const auto& [before, next] = timeline_.between(t);
    if (trip.is_out) after[trip.out - 1].push_back({Kind::kCopyOut, stays[before].item});
    copied_in[trip.begins % timeline_.num_moments()].push_back(next);
  }
  for (size_t s = 0; s < stays.size(); ++s) {
    const Timeline::Stay& stay = stays[s];
    if (stay.begin >= stay.end) continue;
    if (stay.released) {
      after[(stay.end - 1) % timeline_.num_moments()].push_back({Kind::kGiveUp, stay.item});
    }
    if (stay.replayed || stay.copied || program_.is_root(stay.item)) continue;
    schedule.addresses[stay.item] = address_of(of_stay_[s]);
    schedule.other_addresses[stay.item] = address_of(other_[stay.item]);
    schedule.outlives[stay.item] = stay.outlives;
  }
  auto begin_copies_in = [&](int32_t moment) {
    for (const int32_t s : copied_in[moment]) {
      const auto result = static_cast<int32_t>(schedule.results.size());
      schedule.results.push_back({stays[s].item, address_of(of_stay_[s]), /*wanted=*/true,
                                  stays[s].outlives, program_.items[stays[s].item].bytes});
      schedule.before.push_back({Kind::kCopyIn, stays[s].item, result, result + 1});
    }
  };
  size_t r = 0;
  for (int32_t op = 0; op < size; ++op) {
    schedule.first_before.push_back(static_cast<int32_t>(schedule.before.size()));
    for (; r < replays.size() && replays[r].time == op; ++r) {
      const int32_t moment = timeline_.moment_of(r);
      begin_copies_in(moment);
      if (!replays[r].live) continue;
      Schedule::Action action{Kind::kReplay, -1, static_cast<int32_t>(schedule.results.size())};
      for (int32_t i = first_result_[r]; i < first_result_[r + 1]; ++i) {
        const auto& [item, rectangle] = results_[i];
        Schedule::Result result{item, address_of(rectangle), false, false,
                                program_.items[item].bytes};
        for (int32_t s = timeline_.first_stay(item); s < timeline_.end_stays(item); ++s) {
          if (stays[s].begin != moment || !stays[s].replayed || stays[s].end <= moment) continue;
          result.wanted = true;
          result.outlives = stays[s].outlives;
          action.item = item;
        }
        schedule.results.push_back(result);
      }
      action.end_result = static_cast<int32_t>(schedule.results.size());
      schedule.before.push_back(action);
      for (const Schedule::Action& next : after[moment]) schedule.before.push_back(next);
    }
    begin_copies_in(timeline_.run_moment(op));
    schedule.first_after.push_back(static_cast<int32_t>(schedule.after.size()));
    for (const Schedule::Action& next : after[timeline_.run_moment(op)]) {
      schedule.after.push_back(next);
    }
  }
  schedule.first_before.push_back(static_cast<int32_t>(schedule.before.size()));
  schedule.first_after.push_back(static_cast<int32_t>(schedule.after.size()));
  add_root_actions(schedule);
  schedule.replay_cost = timeline_.replay_cost();
  schedule.waited = timeline_.waited();
  return schedule;
}

}  // namespace

std::optional<Schedule> place(const StepProgram& program, const Timeline& timeline,
                              const std::vector<KnownRoot>& roots,
                              const std::vector<Obstacle>& obstacles, Bytes arena_end,
                              std::vector<Unplaced>* unplaced, int64_t* num_looks) {
  Placer placer(program, timeline, roots, obstacles, arena_end);
  *unplaced = placer.place();
  *num_looks += placer.num_looks();
  if (!unplaced->empty()) return std::nullopt;
  return placer.schedule();
}

}  // namespace coop
