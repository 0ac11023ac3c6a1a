// What the scheduler knows of copies: what the link has left, and what they cost.
#include <algorithm>

#include "core/foresight/scheduler.h"

namespace coop {

// The gap before that need can be closed by a copy, so that the value is not there while `op` runs.
// What will be written in place has to be there then.
bool Scheduler::can_copy(int32_t item, size_t need, int32_t op) const {
  const StepProgram::Item& info = program_.items[item];
  const Needs& needs = needs_[item];
  if (need == needs.size() || needs[need - 1].time >= op || needs[need].time <= op) return false;
  if (needs[need].is_replayed() || needs[need].time >= program_.size()) return false;
  if (info.overwritten && needs[need].time >= info.end) return false;
  if (needs[need].copied) {
    return needs[need].gone_begin > 2 * op || needs[need].gone_end < 2 * op + 2;
  }
  return !is_dirty(item, need) || saved_bytes_ + info.bytes <= copy_room_.bytes;
}

// Whether it has to be copied out for that need, since it was not before.
bool Scheduler::is_dirty(int32_t item, size_t need) const {
  const Needs& needs = needs_[item];
  for (size_t i = need - 1; i > 0; --i) {
    if (needs[i].is_replayed()) return true;
    if (needs[i].copied) return false;
  }
  return true;
}

Scheduler::Away Scheduler::find_away(int32_t item, size_t need, int32_t op) {
  const Needs& needs = needs_[item];
  if (needs[need].copied) return find_longer_away(needs[need], op);
  const Bytes bytes = program_.items[item].bytes;
  const int32_t begin = 2 * needs[need - 1].time + 2;
  Away away{0, link_.in_cost(bytes), begin, 0};
  if (is_dirty(item, need)) {
    away.link += link_.out_cost(bytes);
    const LinkTime::Found out = out_time_.find_early(begin, 2 * op, link_.out_cost(bytes));
    away.waited += out.missing;
    away.gone_begin = std::min(out.slot + 1, 2 * op);
  }
  const LinkTime::Found in =
      in_time_.find_late(2 * op + 2, 2 * needs[need].time, link_.in_cost(bytes));
  away.waited += in.missing;
  away.gone_end = std::max(in.slot, 2 * op + 2);
  ++num_looks_;
  return away;
}

// It is on its way out or in then: that has to be waited for.
Scheduler::Away Scheduler::find_longer_away(const Need& need, int32_t op) const {
  Away away{0, 0, std::min(need.gone_begin, 2 * op), std::max(need.gone_end, 2 * op + 2)};
  away.waited += starts_[need.gone_begin] - starts_[away.gone_begin];
  away.waited += starts_[away.gone_end] - starts_[need.gone_end];
  return away;
}

void Scheduler::send_away(const Gap& gap, int32_t op) {
  const Bytes bytes = program_.items[gap.item].bytes;
  const size_t i = need_before(needs_[gap.item], gap.time);
  const Away away = find_away(gap.item, i, op);
  const bool is_dirty_now = is_dirty(gap.item, i);
  Need& need = needs_[gap.item][i];
  if (need.copied) {
    profile_.add(away.gone_begin, need.gone_begin, -bytes);
    profile_.add(need.gone_end, away.gone_end, -bytes);
    need.away_begin = std::min(need.away_begin, op);
    need.away_end = std::max(need.away_end, op);
  } else {
    if (is_dirty_now) {
      saved_bytes_ += bytes;
      out_time_.take_early(2 * needs_[gap.item][i - 1].time + 2, 2 * op, link_.out_cost(bytes));
    }
    in_time_.take_late(2 * op + 2, 2 * need.time, link_.in_cost(bytes));
    profile_.add(away.gone_begin, away.gone_end, -bytes);
    need.kept = false;
    need.copied = true;
    need.away_begin = need.away_end = op;
  }
  need.gone_begin = away.gone_begin;
  need.gone_end = away.gone_end;
}

// Somebody needs it at that time, in the gap before a need that its copy closes: it stays longer,
// is back earlier, or both leaves and comes back twice.
void Scheduler::bring_back_between(int32_t item, size_t need, int32_t time) {
  Needs& needs = needs_[item];
  const Bytes bytes = program_.items[item].bytes;
  const Need whole = needs[need];
  Need between{time, true, false, true};
  Need& after = needs[need];
  profile_.add(whole.gone_begin, whole.gone_end, bytes);
  if (whole.away_begin < time) {
    between.kept = false;
    between.copied = true;
    between.away_begin = whole.away_begin;
    between.away_end = std::min(whole.away_end, time - 1);
    between.gone_begin = whole.gone_begin;
    between.gone_end = std::min(whole.gone_end, 2 * time);
    profile_.add(between.gone_begin, between.gone_end, -bytes);
  }
  if (whole.away_end > time) {
    after.away_begin = std::max(whole.away_begin, time + 1);
    after.gone_begin = std::max(whole.gone_begin, 2 * time + 2);
    profile_.add(after.gone_begin, after.gone_end, -bytes);
  } else {
    after.kept = true;
    after.copied = false;
  }
  needs.insert(needs.begin() + static_cast<std::ptrdiff_t>(need), between);
}

// It is not there, but its copy is.
bool Scheduler::is_on_host(int32_t item, int32_t time) const {
  const Needs& needs = needs_[item];
  const size_t i = need_before(needs, time);
  return needs[i].time < time && i + 1 < needs.size() && needs[i + 1].copied;
}

// What the link has left beside the copies that there are.
void Scheduler::update_link(const Timeline& timeline) {
  const int32_t size = program_.size();
  std::vector<Cost> durations(2 * size, 0);
  for (int32_t op = 0; op < size; ++op) {
    for (int32_t m = timeline.first_moment(op); m < timeline.run_moment(op); ++m) {
      durations[2 * op] += timeline.duration(m);
    }
    durations[2 * op + 1] = timeline.duration(timeline.run_moment(op));
  }
  starts_.assign(1, 0);
  for (const Cost duration : durations) starts_.push_back(starts_.back() + duration);
  out_time_.reset(durations);
  in_time_.reset(durations);
  saved_bytes_ = timeline.saved_bytes();
  auto slot_of = [&](int32_t moment) {
    return moment == timeline.num_moments() ? 2 * size : 2 * timeline.operator_at(moment);
  };
  std::vector<Trip> trips = timeline.trips();
  std::sort(trips.begin(), trips.end(), [](const Trip& a, const Trip& b) { return a.out < b.out; });
  for (const Trip& trip : trips) {
    if (trip.is_out) out_time_.take_early(slot_of(trip.out), 2 * size, link_.out_cost(trip.bytes));
  }
  std::sort(trips.begin(), trips.end(),
            [](const Trip& a, const Trip& b) { return a.needed > b.needed; });
  for (const Trip& trip : trips) {
    in_time_.take_late(0, slot_of(trip.needed), link_.in_cost(trip.bytes));
  }
}

}  // namespace coop
