#include "core/foresight/timeline.h"

#include <algorithm>

#include "core/check.h"

namespace coop {

Timeline::Timeline(const StepProgram& program, const std::vector<Needs>& needs,
                   const std::vector<Bytes>& reserved, const LinkProfile& link)
    : program_(&program) {
  const int32_t size = program.size();
  for (int32_t item = 0; item < program.num_items(); ++item) {
    for (size_t i = 1; i < needs[item].size(); ++i) {
      if (needs[item][i].is_replayed())
        replays_.push_back({needs[item][i].time, program.items[item].maker});
    }
  }
  auto is_before = [](const Replay& a, const Replay& b) {
    return a.time != b.time ? a.time < b.time : a.maker < b.maker;
  };
  std::sort(replays_.begin(), replays_.end(), is_before);
  replays_.erase(std::unique(replays_.begin(), replays_.end(),
                             [](const Replay& a, const Replay& b) {
                               return a.time == b.time && a.maker == b.maker;
                             }),
                 replays_.end());
  size_t next = 0;
  for (int32_t op = 0; op < size; ++op) {
    while (next < replays_.size() && replays_[next].time == op) ++next;
    run_moments_.push_back(op + static_cast<int32_t>(next));
  }
  bytes_.assign(size + replays_.size(), 0);
  for (int32_t item = 0; item < program.num_items(); ++item) {
    first_stays_.push_back(static_cast<int32_t>(stays_.size()));
    add_stays(item, needs[item]);
  }
  first_stays_.push_back(static_cast<int32_t>(stays_.size()));
  find_reads();
  end_stays();
  share_memory();
  find_durations();
  plan_copies(link);
  count_bytes(reserved);
}

void Timeline::add_stays(int32_t item, const Needs& needs) {
  const StepProgram::Item& info = program_->items[item];
  Stay stay{};
  stay.item = item;
  stay.takes = -1;
  COOP_DEBUG_ASSERT(info.born < program_->size());
  if (program_->is_root(item)) {
    add_root_stays(stay, needs);
    return;
  }
  if (needs.empty()) {
    stay.time = info.born;
    stay.begin = run_moments_[info.born];
    stays_.push_back(stay);
    return;
  }
  for (size_t i = 0; i < needs.size(); ++i) {
    if (i > 0 && needs[i].kept) continue;
    stay.time = needs[i].time;
    stay.copied = needs[i].copied;
    stay.away_begin = needs[i].away_begin;
    stay.away_end = needs[i].away_end;
    stay.replayed = i > 0 && !stay.copied;
    stay.begin = stay.time < program_->size() ? run_moments_[stay.time] : num_moments();
    if (stay.replayed) {
      const auto replay =
          std::lower_bound(replays_.begin(), replays_.end(), Replay{stay.time, info.maker},
                           [](const Replay& a, const Replay& b) {
                             return a.time != b.time ? a.time < b.time : a.maker < b.maker;
                           });
      stay.begin = moment_of(replay - replays_.begin());
    }
    stays_.push_back(stay);
  }
}

// From the beginning of the step on, unless its copy brings it back for its first need.
void Timeline::add_root_stays(Stay stay, const Needs& needs) {
  stay.time = -1;
  if (!needs.front().copied) stays_.push_back(stay);
  for (const Need& need : needs) {
    if (!need.copied) continue;
    stay.time = need.time;
    stay.copied = true;
    stay.away_begin = need.away_begin;
    stay.away_end = need.away_end;
    stay.begin = run_moments_[need.time];
    stays_.push_back(stay);
  }
}

// The one that a reader finds at a time; what begins at that time is what it finds.
int32_t Timeline::find_stay(int32_t item, int32_t time) const {
  int32_t found = -1;
  for (int32_t s = first_stays_[item]; s < first_stays_[item + 1] && stays_[s].time <= time; ++s) {
    found = s;
  }
  return found;
}

void Timeline::read(int32_t item, int32_t time, int32_t moment) {
  const int32_t s = find_stay(item, time);
  if (s < 0) {
    whole_ = false;
    return;
  }
  Stay& stay = stays_[s];
  stay.was_read = true;
  stay.first_read = std::min(stay.first_read, moment);
  stay.end = std::max(stay.end, moment + 1);
}

// From the end to the beginning: what is read by nobody who comes later need not be made.
void Timeline::find_reads() {
  for (Stay& stay : stays_) {
    const StepProgram::Item& item = program_->items[stay.item];
    stay.end = stay.begin + 1;
    const bool is_last = &stay == &stays_[first_stays_[stay.item + 1] - 1];
    // From then on it is a root, or the next step sees it.
    stay.was_read =
        is_last && (item.fixed != StepProgram::kNever || item.end == StepProgram::kNever);
    stay.was_read |= program_->is_root(stay.item);
  }
  auto next = static_cast<int32_t>(replays_.size()) - 1;
  for (int32_t op = program_->size() - 1; op >= 0; --op) {
    program_->for_each_use(op, [&](int32_t item) {
      if (program_->can_leave(item)) read(item, op, run_moments_[op]);
    });
    for (; next >= 0 && replays_[next].time == op; --next) {
      Replay& replay = replays_[next];
      const int32_t moment = moment_of(next);
      const int32_t end = program_->end_items(replay.maker);
      for (int32_t item = program_->operators[replay.maker].first_item; item < end; ++item) {
        if (program_->items[item].maker != replay.maker) continue;
        for (int32_t s = first_stays_[item]; s < first_stays_[item + 1]; ++s) {
          replay.live |= stays_[s].begin == moment && stays_[s].replayed && stays_[s].was_read;
        }
      }
      if (!replay.live) continue;
      replay_cost_ += program_->operators[replay.maker].cost;
      program_->for_each_source(replay.maker, [&](int32_t item) {
        if (program_->can_leave(item)) read(item, op, moment);
      });
    }
  }
}

// The moment at which the program itself lets go of it.
int32_t Timeline::death_moment(const StepProgram::Item& item) const {
  if (item.overwritten && item.end < program_->size()) return run_moments_[item.end];
  return death_moment(item.end, item.freed);
}

int32_t Timeline::death_moment(int32_t op, int32_t freed) const {
  if (op >= program_->size()) return num_moments();
  return freed <= program_->operators[op].first_item ? first_moment(op) : run_moments_[op] + 1;
}

void Timeline::end_stays() {
  for (Stay& stay : stays_) {
    const StepProgram::Item& item = program_->items[stay.item];
    const int32_t death = death_moment(item);
    const bool is_last = &stay == &stays_[first_stays_[stay.item + 1] - 1];
    if (program_->is_root(stay.item)) {
      // At its end it is there as it was at its beginning.
      const bool is_home = !stays_[first_stays_[stay.item]].copied;
      if (is_last && is_home) stay.end = num_moments();
      continue;
    }
    const bool is_root = item.maker < 0 || (is_last && item.fixed != StepProgram::kNever);
    if (is_root || (is_last && item.end == StepProgram::kNever)) {
      stay.end = std::max(stay.end, item.end == StepProgram::kNever ? num_moments() : death);
      continue;
    }
    if ((stay.replayed || stay.copied) && !stay.was_read) {
      stay.end = stay.begin;  // it is not made, or fetched
      continue;
    }
    // Where its memory goes to the next version, that takes it.
    if (item.overwritten && !stay.replayed && stay.end >= death) {
      stay.end = death;
      continue;
    }
    stay.outlives = stay.end > death;
    stay.released = stay.end != death;
  }
}

// What is written in place takes the memory of the version before, if nothing reads that any more.
void Timeline::share_memory() {
  for (size_t s = 0; s < stays_.size(); ++s) {
    Stay& stay = stays_[s];
    const StepProgram::Item& item = program_->items[stay.item];
    if (item.takes < 0 || stay.begin == stay.end) continue;
    const int32_t taken = find_stay(item.takes, stay.time);
    if (taken < 0) continue;
    Stay& before = stays_[taken];
    const bool is_free =
        stay.replayed ? before.end == stay.begin + 1 && before.replayed : before.end >= stay.begin;
    if (before.begin >= stay.begin || !is_free) continue;
    before.end = stay.begin;
    before.released = false;
    stay.takes = taken;
  }
}

void Timeline::find_durations() {
  durations_.assign(bytes_.size(), 0);
  for (int32_t op = 0; op < program_->size(); ++op) {
    durations_[run_moments_[op]] = program_->operators[op].cost;
  }
  for (size_t r = 0; r < replays_.size(); ++r) {
    if (!replays_[r].live) continue;
    durations_[moment_of(r)] = program_->operators[replays_[r].maker].cost;
  }
}

void Timeline::count_bytes(const std::vector<Bytes>& reserved) {
  std::vector<Bytes> change(bytes_.size() + 1, 0);
  auto add = [&](int32_t begin, int32_t end, Bytes bytes) {
    if (begin >= end) return;
    change[begin] += bytes;
    change[end] -= bytes;
  };
  add(0, num_moments(), program_->base);
  for (const StepProgram::Death& death : program_->older_deaths) {
    add(death_moment(death.op, death.freed), num_moments(), -death.bytes);
  }
  for (const Stay& stay : stays_) {
    if (program_->is_temporary(stay.item)) continue;
    const Bytes bytes = program_->items[stay.item].bytes;
    add(std::max(stay.begin, 0), std::min(stay.end, num_moments()), bytes);
    // Over the end of the step.
    if (stay.begin < 0) add(num_moments() + stay.begin, num_moments(), bytes);
    if (stay.end > num_moments()) add(0, stay.end - num_moments(), bytes);
  }
  for (int32_t op = 0; op < program_->size(); ++op) {
    add(run_moments_[op], run_moments_[op] + 1, program_->operators[op].temporary);
    if (!reserved.empty()) add(first_moment(op), run_moments_[op] + 1, reserved[op]);
  }
  for (size_t r = 0; r < replays_.size(); ++r) {
    if (!replays_[r].live) continue;
    const int32_t moment = moment_of(r);
    const int32_t maker = replays_[r].maker;
    Bytes bytes = program_->operators[maker].temporary;
    // All results are made, whoever wants them.
    for (int32_t i = program_->operators[maker].first_item; i < program_->end_items(maker); ++i) {
      const StepProgram::Item& item = program_->items[i];
      if (item.maker != maker || item.takes >= 0) continue;
      const int32_t s = find_stay(i, replays_[r].time);
      const bool is_made = stays_[s].begin == moment && stays_[s].end > moment;
      if (!is_made) bytes += item.bytes;
    }
    add(moment, moment + 1, bytes);
  }
  Bytes held = 0;
  for (size_t m = 0; m < bytes_.size(); ++m) bytes_[m] = held += change[m];
}

int32_t Timeline::operator_at(int32_t moment) const {
  const auto found = std::lower_bound(run_moments_.begin(), run_moments_.end(), moment);
  return std::min(static_cast<int32_t>(found - run_moments_.begin()), program_->size() - 1);
}

Bytes Timeline::bytes_before(int32_t op) const {
  const auto begin = bytes_.begin() + first_moment(op);
  const auto end = bytes_.begin() + run_moments_[op];
  return begin == end ? 0 : *std::max_element(begin, end);
}

std::vector<Needs> Timeline::needs() const {
  std::vector<Needs> needs(program_->items.size());
  auto add = [&](int32_t item, Need need) {
    Needs& list = needs[item];
    if (!list.empty() && list.back().time == need.time) {
      list.back().kept &= need.kept;
      list.back().derived &= need.derived;
    } else {
      list.push_back(need);
    }
  };
  size_t next = 0;
  for (int32_t op = 0; op < program_->size(); ++op) {
    for (int32_t i = program_->operators[op].first_item; i < program_->end_items(op); ++i) {
      if (program_->items[i].maker >= 0) add(i, {op, false});
    }
    const size_t begin = next;
    for (; next < replays_.size() && replays_[next].time == op; ++next) {
    }
    for (size_t r = begin; r < next; ++r) {
      if (!replays_[r].live) continue;
      program_->for_each_source(replays_[r].maker, [&](int32_t item) {
        if (program_->can_leave(item)) add(item, {op, true, false, true});
      });
    }
    program_->for_each_use(op, [&](int32_t item) {
      if (program_->can_leave(item)) add(item, {op, true, false, false});
    });
  }
  for (int32_t item = 0; item < program_->num_items(); ++item) {
    const StepProgram::Item& info = program_->items[item];
    Needs& list = needs[item];
    if (program_->is_root(item)) {
      if (list.empty()) list.push_back({0, true});
      for (int32_t s = first_stays_[item]; s < first_stays_[item + 1]; ++s) {
        if (stays_[s].copied)
          set_copied(list, s, s > first_stays_[item] ? s - 1 : end_stays(item) - 1);
      }
      continue;
    }
    if (info.maker < 0) continue;
    while (list.size() > 1 && list.back().time > info.fixed) list.pop_back();
    if (info.fixed != StepProgram::kNever) {
      add(item, {info.fixed, true});
    } else if (info.end == StepProgram::kNever) {
      add(item, {program_->size(), true});
    }
    int32_t before = -1;
    for (int32_t s = first_stays_[item]; s < first_stays_[item + 1]; ++s) {
      if (stays_[s].begin == stays_[s].end) continue;
      if (stays_[s].copied) set_copied(list, s, before);
      before = s;
      if (!stays_[s].replayed) continue;
      size_t i = need_before(list, stays_[s].time);
      // Who reads it comes later: it had better stay until then, unless it is written over.
      if (list[i].time != stays_[s].time) {
        if (!info.overwritten || list[i].time > info.end) continue;
        list.insert(list.begin() + ++i, {stays_[s].time, false, false, true});
      }
      list[i].kept = false;
    }
    for (size_t i = 0; i < list.size(); ++i) {
      const bool is_last = i + 1 == list.size() || list[i + 1].is_replayed();
      list[i].passing = list[i].derived && is_last && !list[i].copied;
    }
  }
  return needs;
}

}  // namespace coop
