// What the scheduler knows of copies: what the link has left, and what they cost.
#include <algorithm>

#include "core/foresight/scheduler.h"

namespace coop {

std::optional<Scheduler::Window> Scheduler::find_window(int32_t item, int32_t op) const {
  const Needs& needs = needs_[item];
  const auto next = std::lower_bound(needs.begin(), needs.end(), op,
                                     [](const Need& need, int32_t t) { return need.time < t; });
  if (next != needs.end() && next->time == op) return std::nullopt;
  const auto need = static_cast<size_t>(next - needs.begin());
  if (next != needs.begin() && next != needs.end()) {
    return Window{need, std::prev(next)->time, op, next->time};
  }
  if (!program_.is_root(item)) return std::nullopt;
  const int32_t size = program_.size();
  const int32_t before = needs.back().time;
  return Window{0, before, op > before ? op : op + size, needs.front().time + size};
}

// The gap can be closed by a copy, so that the value is not there while the operator runs. What
// will be written in place has to be there then.
bool Scheduler::can_copy(int32_t item, const Window& window) const {
  const StepProgram::Item& info = program_.items[item];
  const Need& need = needs_[item][window.need];
  if (!program_.is_root(item)) {
    if (need.is_replayed() || need.time >= program_.size()) return false;
    if (info.overwritten && need.time >= info.end) return false;
  }
  const int32_t op = window.op;
  if (need.copied) return need.gone_begin > 2 * op || need.gone_end < 2 * op + 2;
  return has_copied_need(item) || saved_bytes_ + info.bytes <= copy_room_.bytes;
}

bool Scheduler::has_copied_need(int32_t item) const {
  return std::any_of(needs_[item].begin(), needs_[item].end(),
                     [](const Need& need) { return need.copied; });
}

// Whether it has to be copied out for that need, since there is no copy that is good.
bool Scheduler::is_dirty(int32_t item, size_t need) const {
  const Needs& needs = needs_[item];
  if (!program_.is_root(item)) {
    for (size_t i = need - 1; i > 0; --i) {
      if (needs[i].is_replayed()) return true;
      if (needs[i].copied) return false;
    }
    return true;
  }
  const std::vector<int32_t>& writes = root_writes_[item - program_.num_made()];
  for (size_t looked = 0; looked < needs.size(); ++looked) {
    const Need& before = needs[(need + 2 * needs.size() - 1 - looked) % needs.size()];
    if (std::binary_search(writes.begin(), writes.end(), before.time)) return true;
    if (before.copied) return false;
  }
  return false;
}

Scheduler::Away Scheduler::find_away(int32_t item, const Window& window) {
  const Need& need = needs_[item][window.need];
  if (need.copied) return find_longer_away(need, window.op);
  const Bytes bytes = program_.items[item].bytes;
  const int32_t begin = 2 * window.before + 2;
  const int32_t op = window.op;
  Away away{0, link_.in_cost(bytes), begin, 0};
  if (is_dirty(item, window.need)) {
    away.link += link_.out_cost(bytes);
    const LinkTime::Found out = out_time_.find_early(begin, 2 * op, link_.out_cost(bytes));
    away.waited += out.missing;
    away.gone_begin = std::min(out.slot + 1, 2 * op);
  }
  const LinkTime::Found in = in_time_.find_late(2 * op + 2, 2 * window.after, link_.in_cost(bytes));
  away.waited += in.missing;
  away.gone_end = std::max(in.slot, 2 * op + 2);
  ++num_looks_;
  return away;
}

// When a half operator begins, but for what is waited.
Cost Scheduler::start(int32_t half) const {
  const auto end = static_cast<int32_t>(starts_.size()) - 1;
  return half <= end ? starts_[half] : starts_[end] + starts_[half - end];
}

// It is on its way out or in then: that has to be waited for.
Scheduler::Away Scheduler::find_longer_away(const Need& need, int32_t op) const {
  Away away{0, 0, std::min(need.gone_begin, 2 * op), std::max(need.gone_end, 2 * op + 2)};
  away.waited += start(need.gone_begin) - start(away.gone_begin);
  away.waited += start(away.gone_end) - start(need.gone_end);
  return away;
}

// To half operators of this step, and of the next, which is like it.
void Scheduler::add_bytes(int32_t begin, int32_t end, Bytes bytes) {
  const int32_t size = 2 * program_.size();
  profile_.add(begin, std::min(end, size), bytes);
  if (end > size) profile_.add(std::max(begin - size, 0), end - size, bytes);
}

void Scheduler::send_away(const Gap& gap, int32_t op) {
  const Bytes bytes = program_.items[gap.item].bytes;
  const std::optional<Window> window = find_window(gap.item, op);
  const Away away = find_away(gap.item, *window);
  Need& need = needs_[gap.item][window->need];
  if (need.copied) {
    add_bytes(away.gone_begin, need.gone_begin, -bytes);
    add_bytes(need.gone_end, away.gone_end, -bytes);
    need.away_begin = std::min(need.away_begin, window->op);
    need.away_end = std::max(need.away_end, window->op);
  } else {
    if (!has_copied_need(gap.item)) saved_bytes_ += bytes;
    if (is_dirty(gap.item, window->need)) {
      out_time_.take_early(2 * window->before + 2, 2 * window->op, link_.out_cost(bytes));
    }
    in_time_.take_late(2 * window->op + 2, 2 * window->after, link_.in_cost(bytes));
    add_bytes(away.gone_begin, away.gone_end, -bytes);
    need.kept = false;
    need.copied = true;
    need.away_begin = need.away_end = window->op;
  }
  need.gone_begin = away.gone_begin;
  need.gone_end = away.gone_end;
}

// A replay reads it then.
void Scheduler::require_root(int32_t item, int32_t time) {
  const std::optional<Window> window = find_window(item, time);
  if (!window) return;
  Needs& needs = needs_[item];
  if (needs[window->need].copied) {
    bring_back_between(item, *window);
    return;
  }
  const auto next = std::lower_bound(needs.begin(), needs.end(), time,
                                     [](const Need& need, int32_t t) { return need.time < t; });
  needs.insert(next, {time, true, false, true});
}

// Somebody needs it at that time, in the gap before a need that its copy ends: it stays longer, is
// back earlier, or both leaves and comes back twice.
void Scheduler::bring_back_between(int32_t item, const Window& window) {
  Needs& needs = needs_[item];
  const Bytes bytes = program_.items[item].bytes;
  const Need whole = needs[window.need];
  const int32_t op = window.op;
  const int32_t size = program_.size();
  Need between{op % size, true, false, true};
  Need& after = needs[window.need];
  add_bytes(whole.gone_begin, whole.gone_end, bytes);
  if (whole.away_begin < op) {
    between.kept = false;
    between.copied = true;
    between.away_begin = whole.away_begin;
    between.away_end = std::min(whole.away_end, op - 1);
    between.gone_begin = whole.gone_begin;
    between.gone_end = std::min(whole.gone_end, 2 * op);
    add_bytes(between.gone_begin, between.gone_end, -bytes);
  }
  if (whole.away_end > op) {
    after.away_begin = std::max(whole.away_begin, op + 1);
    after.gone_begin = std::max(whole.gone_begin, 2 * op + 2);
    add_bytes(after.gone_begin, after.gone_end, -bytes);
    // The gap over the end of the step ends at the first need now.
    const int32_t shift = op >= size ? size : 0;
    after.away_begin -= shift;
    after.away_end -= shift;
    after.gone_begin -= 2 * shift;
    after.gone_end -= 2 * shift;
  } else {
    after.kept = true;
    after.copied = false;
  }
  const auto next = std::lower_bound(needs.begin(), needs.end(), between.time,
                                     [](const Need& need, int32_t t) { return need.time < t; });
  needs.insert(next, between);
}

// It is not there, but its copy is.
bool Scheduler::is_on_host(int32_t item, int32_t time) const {
  const std::optional<Window> window = find_window(item, time);
  return window && needs_[item][window->need].copied;
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
  const int32_t moments = timeline.num_moments();
  auto slot_of = [&](int32_t moment) {
    return moment < moments ? 2 * timeline.operator_at(moment)
                            : 2 * size + 2 * timeline.operator_at(moment - moments);
  };
  std::vector<Trip> trips = timeline.trips();
  std::sort(trips.begin(), trips.end(), [](const Trip& a, const Trip& b) { return a.out < b.out; });
  for (const Trip& trip : trips) {
    const int32_t begin = slot_of(trip.out);
    if (trip.is_out) out_time_.take_early(begin, begin + 2 * size, link_.out_cost(trip.bytes));
  }
  std::sort(trips.begin(), trips.end(),
            [](const Trip& a, const Trip& b) { return a.needed > b.needed; });
  for (const Trip& trip : trips) {
    const int32_t end = slot_of(trip.needed);
    in_time_.take_late(std::max(end - 2 * size, 0), end, link_.in_cost(trip.bytes));
  }
}

}  // namespace coop
