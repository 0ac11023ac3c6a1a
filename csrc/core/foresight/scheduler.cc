#include "core/foresight/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace coop {

namespace {

// Dead values that are looked at, whether to keep one instead of another value.
constexpr size_t kMostAncestors = 12;
// Estimates are good for so many operators that need the most memory, by the size of the step.
constexpr int32_t kItemsAPeak = 500;

// Every operator is two moments: while its inputs are brought back, and while it runs.
int32_t begin(int32_t op) { return op > (1 << 30) ? op : 2 * op; }
int32_t running(int32_t op) { return 2 * op + 1; }
int32_t end_of(const StepProgram::Item& item) { return begin(item.end); }
// The first moment in which it is not there, or counts as a replay's, if it only passes.
int32_t first_spared(const Need& need) { return need.kept ? running(need.time) : begin(need.time); }

}  // namespace

Scheduler::Scheduler(const StepProgram& program, const Preferences& preferences,
                     const CopyRoom& copy_room)
    : program_(program),
      preferences_(preferences),
      copy_room_(copy_room),
      link_(copy_room.link, copy_room.bytes > 0),
      near_(static_cast<int32_t>(std::ceil(preferences.near * program.size()))),
      most_peaks_(1 + program.num_items() / kItemsAPeak),
      profile_(2 * program.size()),
      needs_(program.items.size()),
      passing_(program.size(), 0),
      op_mark_(program.size(), 0),
      root_writes_(program.num_roots) {
  const int32_t size = program.size();
  profile_.add(0, 2 * size, program.base);
  for (const StepProgram::Death& death : program.older_deaths) {
    profile_.add(begin(death.op), 2 * size, -death.bytes);
  }
  for (int32_t op = 0; op < size; ++op) {
    profile_.add(running(op), begin(op + 1), program.operators[op].temporary);
    program.for_each_use(op, [&](int32_t item) {
      Needs& needs = needs_[item];
      if (program.items[item].born < op && (needs.empty() || needs.back().time < op)) {
        needs.push_back({op, true});
      }
    });
  }
  for (const StepProgram::RootWrite& write : program.root_writes) {
    root_writes_[write.item - program.num_made()].push_back(write.op);
  }
  for (size_t i = 0; i < program.items.size(); ++i) {
    const StepProgram::Item& item = program.items[i];
    Needs& needs = needs_[i];
    if (program.is_root(static_cast<int32_t>(i))) {
      if (needs.empty()) needs.push_back({0, true});
      profile_.add(0, 2 * size, item.bytes);
      continue;
    }
    if (item.maker < 0) {
      needs.clear();
      profile_.add(running(item.born), end_of(item), item.bytes);
      continue;
    }
    needs.insert(needs.begin(), {item.born, false});
    // From here on it is a root.
    while (needs.size() > 1 && needs.back().time > item.fixed) needs.pop_back();
    if (item.fixed != StepProgram::kNever) {
      if (needs.back().time < item.fixed) needs.push_back({item.fixed, true});
      profile_.add(begin(std::max(item.fixed + 1, item.born)), end_of(item), item.bytes);
    } else if (item.end == StepProgram::kNever) {
      needs.push_back({size, true});  // the next step sees it
    }
    profile_.add(running(item.born), begin(needs.back().time + 1), item.bytes);
  }
}

void Scheduler::update(const Timeline& timeline) {
  needs_ = timeline.needs();
  std::vector<Bytes> bytes;
  for (int32_t op = 0; op < program_.size(); ++op) {
    bytes.push_back(timeline.bytes_before(op));
    bytes.push_back(timeline.bytes_running(op));
    passing_[op] = 0;
  }
  profile_ = Profile(bytes);
  for (const Timeline::Stay& stay : timeline.stays()) {
    if (!stay.replayed || stay.begin == stay.end) continue;
    const Needs& needs = needs_[stay.item];
    const Need& need = needs[need_before(needs, stay.time)];
    if (need.passing) passing_[stay.time] += program_.items[stay.item].bytes;
  }
  if (has_copies()) update_link(timeline);
}

bool Scheduler::keep_what_fits(const Timeline& timeline, Bytes room) {
  Profile profile(timeline.bytes());
  const std::vector<Timeline::Stay>& stays = timeline.stays();
  std::vector<std::pair<double, int32_t>> candidates;
  for (size_t s = 0; s < stays.size(); ++s) {
    const Timeline::Stay& stay = stays[s];
    if (!stay.replayed || stay.begin == stay.end) continue;
    const int32_t maker = program_.items[stay.item].maker;
    candidates.emplace_back(-program_.operators[maker].cost, static_cast<int32_t>(s));
  }
  std::vector<int32_t> before_copied(has_copies() ? stays.size() : 0);
  for (size_t t = 0; t < timeline.trips().size(); ++t) {
    const Trip& trip = timeline.trips()[t];
    const auto& [before, after] = timeline.between(t);
    const Cost link = link_.in_cost(trip.bytes) + (trip.is_out ? link_.out_cost(trip.bytes) : 0);
    candidates.emplace_back(-trip.waited - preferences_.link * link, after);
    before_copied[after] = before;
  }
  std::sort(candidates.begin(), candidates.end());
  bool changed = false;
  for (const auto& [price, s] : candidates) {
    const Timeline::Stay& stay = stays[s];
    const Timeline::Stay& before = stays[stay.copied ? before_copied[s] : s - 1];
    if (!can_stay(stay.item, before.time, stay.time)) continue;
    const Bytes size = program_.items[stay.item].bytes;
    const int32_t begin = std::max(before.end, before.begin + 1);
    // A root's last gap goes over the end of the step.
    const int32_t moments = timeline.num_moments();
    const int32_t end = stay.begin + (before.time >= stay.time ? moments : 0);
    const int32_t over = std::max(end - moments, 0);
    if (profile.most(begin, std::min(end, moments)) + size > room) continue;
    if (profile.most(std::max(begin - moments, 0), over) + size > room) continue;
    profile.add(begin, std::min(end, moments), size);
    profile.add(std::max(begin - moments, 0), over, size);
    Needs& needs = needs_[stay.item];
    Need& need = needs[need_before(needs, stay.time)];
    need.kept = true;
    need.copied = false;
    changed = true;
  }
  return changed;
}

bool Scheduler::is_there(int32_t item, int32_t time) const {
  if (program_.is_root(item)) return !is_on_host(item, time);
  const StepProgram::Item& info = program_.items[item];
  if (info.maker < 0 || time >= info.fixed) return true;
  const Needs& needs = needs_[item];
  const size_t i = need_before(needs_[item], time);
  return needs[i].time == time || (i + 1 < needs.size() && needs[i + 1].kept);
}

// What is written in place is gone then, whoever wants it.
bool Scheduler::can_stay(int32_t item, int32_t from, int32_t to) const {
  const StepProgram::Item& info = program_.items[item];
  return !info.overwritten || from > info.end || to <= info.end;
}

bool Scheduler::is_near(int32_t item, int32_t time) const {
  const Needs& needs = needs_[item];
  const size_t i = need_before(needs_[item], time);
  return can_bridge(item, needs[i].time, time) ||
         (i + 1 < needs.size() && can_bridge(item, time, needs[i + 1].time));
}

// Whether it can stay from one time to another at no other's expense.
bool Scheduler::can_bridge(int32_t item, int32_t from, int32_t to) const {
  if (!can_stay(item, from, to)) return false;
  const bool passes_lowered = begin(from) <= lowered_ && lowered_ < begin(to);
  return (to - from <= near_ && !passes_lowered) ||
         profile_.most(begin(from + 1), begin(to)) + program_.items[item].bytes <= room_;
}

// Whether the operator runs again for that time anyway.
bool Scheduler::is_replayed(int32_t maker, int32_t time) const {
  for (int32_t i = program_.operators[maker].first_item; i < program_.end_items(maker); ++i) {
    const Needs& needs = needs_[i];
    if (program_.items[i].maker != maker || needs.size() < 2) continue;
    const size_t need = need_before(needs, time);
    if (need > 0 && needs[need].time == time && needs[need].is_replayed()) return true;
  }
  return false;
}

// One replay makes all that its operator made. What else of it stays while `op` runs, for the same
// later time, can be given up with it for nothing.
template <typename F>
void Scheduler::for_each_sibling(const Gap& gap, int32_t op, F&& f) const {
  const int32_t maker = program_.items[gap.item].maker;
  for (int32_t i = program_.operators[maker].first_item; i < program_.end_items(maker); ++i) {
    const StepProgram::Item& item = program_.items[i];
    const Needs& needs = needs_[i];
    if (i == gap.item || item.maker != maker || item.in_backward || needs.size() < 2) continue;
    const size_t next = need_before(needs, op) + 1;
    if (next == needs.size() || needs[next - 1].time >= op) continue;
    if (needs[next].time == gap.time && needs[next].kept) f(i);
  }
}

// What has to be recomputed for the item at that time.
Cost Scheduler::closure_cost(int32_t item, int32_t time, int32_t kept, bool collect) {
  ++round_;
  queue_.assign(1, item);
  if (collect) ancestors_.clear();
  Cost cost = 0;
  for (size_t next = 0; next < queue_.size(); ++next) {
    const int32_t maker = program_.items[queue_[next]].maker;
    if (op_mark_[maker] == round_) continue;
    op_mark_[maker] = round_;
    if (is_replayed(maker, time)) continue;
    cost += program_.operators[maker].cost;
    ++num_looks_;
    program_.for_each_source(maker, [&](int32_t source) {
      if (source == kept || is_there(source, time)) return;
      if (has_copies() && is_on_host(source, time)) {
        cost += preferences_.link * link_.in_cost(program_.items[source].bytes);
        return;
      }
      if (collect && ancestors_.size() < kMostAncestors) ancestors_.push_back(source);
      if (!is_near(source, time)) queue_.push_back(source);
    });
  }
  return cost;
}

// Of the gap in which the operator runs. It may have become shorter since it was found.
bool Scheduler::set_price(Gap& gap, int32_t op) {
  gap.copied = false;
  const bool is_priced = set_recompute_price(gap, op);
  if (!has_copies()) return is_priced;
  const std::optional<Window> window = find_window(gap.item, op);
  if (!window || !can_copy(gap.item, *window)) return is_priced;
  const Away away = find_away(gap.item, *window);
  const double price = (away.waited + preferences_.link * away.link) /
                       static_cast<double>(program_.items[gap.item].bytes);
  if (is_priced && gap.price <= price) return true;
  gap = {price, gap.item, window->after, -1, /*copied=*/true};
  return true;
}

bool Scheduler::set_recompute_price(Gap& gap, int32_t op) {
  const Needs& needs = needs_[gap.item];
  const size_t before = need_before(needs, op);
  const size_t i = before + 1;
  if (program_.items[gap.item].in_backward || program_.is_root(gap.item)) return false;
  if (needs[before].time > op || i == needs.size() || !needs[i].kept) return false;
  const bool is_used = needs[before].time == op && !needs[before].derived;
  if (is_used || first_spared(needs[before]) > lowered_) return false;
  gap.time = needs[i].time;
  if (gap.time >= program_.size()) return false;  // the next step's
  gap.instead = -1;
  if (is_replayed(program_.items[gap.item].maker, gap.time)) {
    gap.price = 0;
    return true;
  }
  Bytes bytes = program_.items[gap.item].bytes;
  for_each_sibling(gap, op, [&](int32_t sibling) { bytes += program_.items[sibling].bytes; });
  const Cost cost = closure_cost(gap.item, gap.time, -1, /*collect=*/true);
  gap.price = cost / static_cast<double>(bytes);
  for (const int32_t ancestor : ancestors_) {
    const size_t last = need_before(needs_[ancestor], gap.time);
    if (!can_stay(ancestor, needs_[ancestor][last].time, gap.time)) continue;
    const bool covers = needs_[ancestor][last].time < op;
    const Bytes freed = bytes - (covers ? program_.items[ancestor].bytes : 0);
    if (freed <= 0) continue;
    const double price =
        closure_cost(gap.item, gap.time, ancestor, /*collect=*/false) / static_cast<double>(freed);
    if (price * preferences_.instead < gap.price) {
      gap.price = price;
      gap.instead = ancestor;
    }
  }
  gap.price *= weight(gap.item);
  return true;
}

bool Scheduler::is_later(const Gap& a, const Gap& b) { return a.price > b.price; }

// As a heap. False: there is none.
bool Scheduler::find_gaps(int32_t op, std::vector<Gap>& gaps) {
  gaps.clear();
  num_looks_ += program_.num_items();
  for (int32_t item = 0; item < program_.num_items(); ++item) {
    const StepProgram::Item& info = program_.items[item];
    if (!program_.can_leave(item) || info.bytes == 0 || info.born >= op) continue;
    if ((info.in_backward || program_.is_root(item)) && !has_copies()) continue;
    Gap gap{0, item, 0, -1};
    if (set_price(gap, op)) gaps.push_back(gap);
  }
  std::make_heap(gaps.begin(), gaps.end(), is_later);
  return !gaps.empty();
}

// It stays on, so its bytes count.
void Scheduler::end_passing(int32_t item, size_t need) {
  Need& ended = needs_[item][need];
  if (!std::exchange(ended.passing, false)) return;
  profile_.add(first_spared(ended), begin(ended.time + 1), program_.items[item].bytes);
}

void Scheduler::set_passing(int32_t time, Bytes bytes) {
  if (bytes <= passing_[time]) return;
  profile_.add(begin(time), running(time), bytes - passing_[time]);
  passing_[time] = bytes;
}

// At `time` it has to be there.
void Scheduler::require(int32_t item, int32_t time, bool keep) {
  if (program_.is_root(item)) return require_root(item, time);
  const StepProgram::Item& info = program_.items[item];
  if (info.maker < 0 || time >= info.fixed) return;
  Needs& needs = needs_[item];
  const Bytes bytes = info.bytes;
  const size_t i = need_before(needs, time);
  if (needs[i].time == time) return;
  if (i + 1 < needs.size() && needs[i + 1].kept) {
    // It is there, and has to be from now on.
    needs.insert(needs.begin() + i + 1, {time, true, false, true});
    return;
  }
  if (i + 1 < needs.size() && needs[i + 1].copied) {
    bring_back_between(item, {i + 1, needs[i].time, time, needs[i + 1].time});
    return;
  }
  const int32_t before = needs[i].time;
  if (keep || can_bridge(item, before, time)) {
    end_passing(item, i);
    needs.insert(needs.begin() + i + 1, {time, true, false, true});
    profile_.add(begin(before + 1), begin(time + 1), bytes);
  } else {
    needs.insert(needs.begin() + i + 1, {time, false, true, true});
    queue_.push_back(item);
  }
  if (i + 2 < needs.size() && !needs[i + 2].kept && can_bridge(item, time, needs[i + 2].time)) {
    end_passing(item, i + 1);
    end_passing(item, i + 2);
    needs[i + 2].kept = true;
    profile_.add(begin(time + 1), begin(needs[i + 2].time), bytes);
  }
}

void Scheduler::make_again(int32_t item, int32_t time, int32_t kept) {
  queue_.assign(1, item);
  for (size_t next = 0; next < queue_.size(); ++next) {
    const int32_t made = queue_[next];
    Bytes passing = made == item ? 0 : program_.items[made].bytes;
    program_.for_each_source(program_.items[made].maker, [&](int32_t source) {
      require(source, time, source == kept);
      if (program_.items[source].maker < 0) return;
      const Needs& needs = needs_[source];
      const Need& need = needs[need_before(needs_[source], time)];
      if (need.time == time && need.passing) passing += program_.items[source].bytes;
    });
    set_passing(time, passing);
  }
}

void Scheduler::give_up(const Gap& gap, int32_t op) {
  if (gap.copied) {
    send_away(gap, op);
    return;
  }
  Needs& needs = needs_[gap.item];
  const size_t i = need_before(needs_[gap.item], gap.time);
  end_passing(gap.item, i);
  needs[i].kept = false;
  Need& before = needs[i - 1];
  const bool passes = before.derived && !before.copied && !before.passing;
  before.passing |= passes;
  profile_.add(passes ? first_spared(before) : begin(before.time + 1), begin(gap.time),
               -program_.items[gap.item].bytes);
  make_again(gap.item, gap.time, gap.instead);
}

bool Scheduler::fit(Bytes room) {
  room_ = room;
  std::vector<Gap> gaps;
  for (int32_t peak = 0; peak < most_peaks_ && profile_.most() > room_; ++peak) {
    int32_t moment = profile_.where_most();
    const int32_t first = running(preferences_.first_operator);
    if (std::exchange(is_first_, false) && first > 0 && profile_.at(first) > room_) moment = first;
    lowered_ = moment;
    const int32_t op = moment / 2;
    find_gaps(op, gaps);
    while (profile_.at(moment) > room_) {
      if (gaps.empty() && !find_gaps(op, gaps)) return false;
      std::pop_heap(gaps.begin(), gaps.end(), is_later);
      Gap gap = gaps.back();
      gaps.pop_back();
      if (!set_price(gap, op)) continue;
      if (!gaps.empty() && gap.price > gaps.front().price * 1.0001) {
        gaps.push_back(gap);
        std::push_heap(gaps.begin(), gaps.end(), is_later);
        continue;
      }
      if (gap.price > 0 && !gap.copied) {  // which is paid now
        for_each_sibling(gap, op, [&](int32_t sibling) {
          gaps.push_back({0, sibling, gap.time, -1});
          std::push_heap(gaps.begin(), gaps.end(), is_later);
        });
      }
      give_up(gap, op);
      if (gap.instead < 0) continue;
      Gap kept{0, gap.instead, 0, -1};
      if (program_.items[kept.item].in_backward || !set_price(kept, op)) continue;
      gaps.push_back(kept);
      std::push_heap(gaps.begin(), gaps.end(), is_later);
    }
  }
  return true;
}

}  // namespace coop
