#include "core/foresight/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace coop {

namespace {

// What is recomputed stays for needs that are at most this share of the step away.
constexpr double kNear = 0.005;
// Dead values that are looked at, whether to keep one instead of another value.
constexpr size_t kMostAncestors = 12;

// Every operator is two moments: while its inputs are brought back, and while it runs.
int32_t begin(int32_t op) { return op > (1 << 30) ? op : 2 * op; }
int32_t running(int32_t op) { return 2 * op + 1; }
int32_t end_of(const StepProgram::Item& item) { return begin(item.end); }

}  // namespace

Scheduler::Scheduler(const StepProgram& program, Bytes room)
    : program_(program),
      room_(room),
      near_(static_cast<int32_t>(std::ceil(kNear * program.size()))),
      profile_(2 * program.size()),
      needs_(program.items.size()),
      passing_(program.size(), 0),
      op_mark_(program.size(), 0) {
  const int32_t size = program.size();
  profile_.add(0, 2 * size, program.base);
  for (const StepProgram::Death& death : program.older_deaths) {
    profile_.add(begin(death.op), 2 * size, -death.bytes);
  }
  for (int32_t op = 0; op < size; ++op) {
    profile_.add(running(op), begin(op + 1), program.operators[op].temporary);
    program.for_each_use(op, [&](int32_t item) {
      std::vector<Need>& needs = needs_[item];
      if (program.items[item].born < op && (needs.empty() || needs.back().time < op)) {
        needs.push_back({op, true});
      }
    });
  }
  for (size_t i = 0; i < program.items.size(); ++i) {
    const StepProgram::Item& item = program.items[i];
    std::vector<Need>& needs = needs_[i];
    if (item.maker < 0) {
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

size_t Scheduler::need_before(int32_t item, int32_t time) const {
  const std::vector<Need>& needs = needs_[item];
  auto after = std::upper_bound(needs.begin(), needs.end(), time,
                                [](int32_t t, const Need& need) { return t < need.time; });
  return after == needs.begin() ? 0 : after - needs.begin() - 1;
}

bool Scheduler::is_there(int32_t item, int32_t time) const {
  const StepProgram::Item& info = program_.items[item];
  if (info.maker < 0 || time >= info.fixed) return true;
  const std::vector<Need>& needs = needs_[item];
  const size_t i = need_before(item, time);
  return needs[i].time == time || (i + 1 < needs.size() && needs[i + 1].kept);
}

// A stay can be made longer, but for the first one of what was written in place.
bool Scheduler::can_stay(int32_t item, size_t need) const {
  if (!program_.items[item].overwritten) return true;
  const std::vector<Need>& needs = needs_[item];
  while (need > 0 && needs[need].kept) --need;
  return need > 0;
}

bool Scheduler::is_near(int32_t item, int32_t time) const {
  const std::vector<Need>& needs = needs_[item];
  const size_t i = need_before(item, time);
  if (can_bridge(item, needs[i].time, time) && can_stay(item, i)) return true;
  return i + 1 < needs.size() && can_bridge(item, time, needs[i + 1].time);
}

// Whether it can stay from one time to another at no other's expense.
bool Scheduler::can_bridge(int32_t item, int32_t from, int32_t to) const {
  return to - from <= near_ ||
         profile_.most(begin(from + 1), begin(to)) + program_.items[item].bytes <= room_;
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
    cost += program_.operators[maker].cost;
    program_.for_each_source(maker, [&](int32_t source) {
      if (source == kept || is_there(source, time)) return;
      if (collect && ancestors_.size() < kMostAncestors) ancestors_.push_back(source);
      if (!is_near(source, time)) queue_.push_back(source);
    });
  }
  return cost;
}

bool Scheduler::set_price(Gap& gap, int32_t op) {
  const std::vector<Need>& needs = needs_[gap.item];
  const size_t i = need_before(gap.item, gap.time);
  if (needs[i].time != gap.time || !needs[i].kept || i == 0) return false;
  const Need& before = needs[i - 1];
  if (before.time > op || (before.time == op && !is_passable(before)) || gap.time <= op)
    return false;
  const Bytes bytes = program_.items[gap.item].bytes;
  needs_[gap.item][i].kept = false;
  // It is there only once it has been made again.
  needs_[gap.item][i].time = gap.time;
  const Cost cost = closure_cost(gap.item, gap.time, -1, /*collect=*/true);
  gap.price = cost / static_cast<double>(bytes);
  gap.instead = -1;
  for (const int32_t ancestor : ancestors_) {
    const size_t last = need_before(ancestor, gap.time);
    if (!can_stay(ancestor, last)) continue;
    const bool covers = needs_[ancestor][last].time < op;
    const Bytes freed = bytes - (covers ? program_.items[ancestor].bytes : 0);
    if (freed <= 0) continue;
    const double price =
        closure_cost(gap.item, gap.time, ancestor, /*collect=*/false) / static_cast<double>(freed);
    if (price < gap.price) {
      gap.price = price;
      gap.instead = ancestor;
    }
  }
  needs_[gap.item][i].kept = true;
  return true;
}

void Scheduler::find_gaps(int32_t op, std::vector<Gap>& gaps) {
  gaps.clear();
  for (size_t item = 0; item < program_.items.size(); ++item) {
    const StepProgram::Item& info = program_.items[item];
    if (info.maker < 0 || info.bytes == 0 || info.in_backward || info.born >= op) continue;
    const std::vector<Need>& needs = needs_[item];
    const size_t i = need_before(static_cast<int32_t>(item), op);
    if (i + 1 == needs.size() || !needs[i + 1].kept) continue;
    if (needs[i].time == op && !is_passable(needs[i])) continue;
    Gap gap{0, static_cast<int32_t>(item), needs[i + 1].time, -1};
    if (gap.time >= program_.size()) continue;  // the next step's
    if (set_price(gap, op)) gaps.push_back(gap);
  }
}

// It stays on, so its bytes count.
void Scheduler::settle(int32_t item, size_t need) {
  Need& settled = needs_[item][need];
  if (!std::exchange(settled.passing, false)) return;
  profile_.add(begin(settled.time), begin(settled.time + 1), program_.items[item].bytes);
}

void Scheduler::set_passing(int32_t time, Bytes bytes) {
  if (bytes <= passing_[time]) return;
  profile_.add(begin(time), running(time), bytes - passing_[time]);
  passing_[time] = bytes;
}

// At `time` it has to be there.
void Scheduler::require(int32_t item, int32_t time, bool keep) {
  if (is_there(item, time)) return;
  std::vector<Need>& needs = needs_[item];
  const Bytes bytes = program_.items[item].bytes;
  const size_t i = need_before(item, time);
  const int32_t before = needs[i].time;
  if (keep || (can_bridge(item, before, time) && can_stay(item, i))) {
    settle(item, i);
    needs.insert(needs.begin() + i + 1, {time, true, false, true});
    profile_.add(begin(before + 1), begin(time + 1), bytes);
  } else {
    needs.insert(needs.begin() + i + 1, {time, false, true, true});
    queue_.push_back(item);
  }
  if (i + 2 < needs.size() && !needs[i + 2].kept && can_bridge(item, time, needs[i + 2].time)) {
    settle(item, i + 1);
    settle(item, i + 2);
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
      const std::vector<Need>& needs = needs_[source];
      const Need& need = needs[need_before(source, time)];
      if (need.time == time && need.passing) passing += program_.items[source].bytes;
    });
    set_passing(time, passing);
  }
}

void Scheduler::give_up(const Gap& gap) {
  std::vector<Need>& needs = needs_[gap.item];
  const size_t i = need_before(gap.item, gap.time);
  needs[i].kept = false;
  Need& before = needs[i - 1];
  const bool passes = is_passable(before) && !before.passing;
  before.passing |= passes;
  profile_.add(begin(passes ? before.time : before.time + 1), begin(gap.time),
               -program_.items[gap.item].bytes);
  make_again(gap.item, gap.time, gap.instead);
}

bool Scheduler::run() {
  std::vector<Gap> gaps;
  auto later = [](const Gap& a, const Gap& b) { return a.price > b.price; };
  int64_t patience = 20 * static_cast<int64_t>(program_.items.size()) + 1000;
  while (profile_.most() > room_) {
    const int32_t moment = profile_.where_most();
    const int32_t op = moment / 2;
    find_gaps(op, gaps);
    std::make_heap(gaps.begin(), gaps.end(), later);
    while (profile_.at(moment) > room_) {
      if (gaps.empty() || --patience < 0) return false;
      std::pop_heap(gaps.begin(), gaps.end(), later);
      Gap gap = gaps.back();
      gaps.pop_back();
      if (!set_price(gap, op)) continue;
      if (!gaps.empty() && gap.price > gaps.front().price * 1.0001) {
        gaps.push_back(gap);
        std::push_heap(gaps.begin(), gaps.end(), later);
        continue;
      }
      give_up(gap);
      if (gap.instead < 0) continue;
      Gap kept{0, gap.instead, gap.time, -1};
      if (program_.items[kept.item].in_backward || !set_price(kept, op)) continue;
      gaps.push_back(kept);
      std::push_heap(gaps.begin(), gaps.end(), later);
    }
  }
  return true;
}

Schedule Scheduler::schedule() const {
  Schedule schedule;
  const int32_t size = program_.size();
  std::vector<std::vector<int32_t>> releases(size);
  std::vector<std::pair<int32_t, int32_t>> replays;  // operator and time
  for (size_t item = 0; item < needs_.size(); ++item) {
    schedule.first_stay.push_back(static_cast<int32_t>(schedule.stays.size()));
    const StepProgram::Item& info = program_.items[item];
    const std::vector<Need>& needs = needs_[item];
    if (info.maker < 0)
      schedule.stays.push_back(
          {info.born, std::min(info.end == info.born ? info.born : info.end - 1, size)});
    for (size_t i = 0; i < needs.size() && info.maker >= 0;) {
      size_t last = i;
      while (last + 1 < needs.size() && needs[last + 1].kept) ++last;
      const int32_t end = needs[last].time;
      schedule.stays.push_back({needs[i].time, end, -1, -1, needs[i].passing});
      if (i > 0) replays.emplace_back(info.maker, needs[i].time);
      // What dies there anyway, or is fixed from then on, need not be given up.
      if (end < size && end + 1 != info.end && end < info.fixed) {
        releases[end].push_back(static_cast<int32_t>(item));
      }
      i = last + 1;
    }
  }
  schedule.first_stay.push_back(static_cast<int32_t>(schedule.stays.size()));
  for (const std::vector<int32_t>& list : releases) {
    schedule.first_release.push_back(static_cast<int32_t>(schedule.releases.size()));
    schedule.releases.insert(schedule.releases.end(), list.begin(), list.end());
  }
  schedule.first_release.push_back(static_cast<int32_t>(schedule.releases.size()));
  std::sort(replays.begin(), replays.end());
  replays.erase(std::unique(replays.begin(), replays.end()), replays.end());
  for (const auto& [op, time] : replays) schedule.replay_cost += program_.operators[op].cost;
  schedule.peak = profile_.most();
  return schedule;
}

}  // namespace coop
