#include "core/foresight/trips.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/policy/link.h"

namespace coop {

namespace {

// Costs are never exactly those of the last step: a copy in begins so much earlier than it has to,
// in times of its own.
constexpr double kLead = 0.1;

// The numbers of all trips, in the order of what is told of them.
template <typename F>
std::vector<int32_t> in_order(const std::vector<Trip>& trips, F&& key) {
  std::vector<int32_t> order(trips.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return key(trips[a]) < key(trips[b]); });
  return order;
}

// Backwards from the last one that is needed: each arrives before the next has to begin.
void begin_late(std::vector<Trip>& trips, const std::vector<Cost>& durations, const Link& link) {
  std::vector<Cost> starts(durations.size() + 1, 0);
  std::partial_sum(durations.begin(), durations.end(), starts.begin() + 1);
  const std::vector<int32_t> order = in_order(trips, [](const Trip& trip) { return trip.needed; });
  Cost next = std::numeric_limits<Cost>::infinity();
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    Trip& trip = trips[*i];
    next = std::min(next, starts[trip.needed]) - (1 + kLead) * link.in_cost(trip.bytes);
    const auto after = std::upper_bound(starts.begin(), starts.end(), next);
    const auto begins = static_cast<int32_t>(after - starts.begin()) - 1;
    trip.begins = std::clamp(begins, trip.back, trip.needed);
  }
}

// Returns what is waited in moments [first, end).
Cost run(std::vector<Trip>& trips, const std::vector<Cost>& durations, int32_t first, int32_t end,
         const LinkProfile& profile) {
  Link link(profile, /*is_on=*/true);
  begin_late(trips, durations, link);
  const std::vector<int32_t> outs = in_order(trips, [](const Trip& trip) { return trip.out; });
  const std::vector<int32_t> gone = in_order(trips, [](const Trip& trip) { return trip.gone; });
  const std::vector<int32_t> ins =
      in_order(trips, [](const Trip& trip) { return std::pair(trip.begins, trip.needed); });
  const std::vector<int32_t> reads = in_order(trips, [](const Trip& trip) { return trip.needed; });
  std::vector<double> left_at(trips.size(), 0);
  std::vector<double> back_at(trips.size(), 0);
  std::vector<int32_t> leaving;  // in the order of the queue
  size_t next_leaving = 0;
  size_t next_out = 0;
  size_t next_gone = 0;
  size_t next_in = 0;
  size_t next_read = 0;
  double clock = 0;
  Cost waited = 0;
  const auto last = static_cast<int32_t>(durations.size());
  auto wait = [&](Trip& trip, double until, int32_t moment) {
    if (until <= clock) return;
    trip.waited += until - clock;
    if (moment >= first && moment < end) waited += until - clock;
    clock = until;
  };
  for (int32_t moment = 0; moment <= last; ++moment) {
    for (; next_out < outs.size() && trips[outs[next_out]].out <= moment; ++next_out) {
      const int32_t i = outs[next_out];
      left_at[i] = trips[i].is_out ? link.send_out(clock, trips[i].bytes) : clock;
      if (trips[i].is_out) {
        leaving.push_back(i);
      } else {
        trips[i].left = moment;
      }
    }
    for (; next_gone < gone.size() && trips[gone[next_gone]].gone <= moment; ++next_gone) {
      wait(trips[gone[next_gone]], left_at[gone[next_gone]], moment);
    }
    for (; next_leaving < leaving.size() && left_at[leaving[next_leaving]] <= clock;
         ++next_leaving) {
      trips[leaving[next_leaving]].left = moment;
    }
    for (; next_in < ins.size() && trips[ins[next_in]].begins <= moment; ++next_in) {
      const int32_t i = ins[next_in];
      back_at[i] = link.send_in(clock, trips[i].bytes);
    }
    for (; next_read < reads.size() && trips[reads[next_read]].needed <= moment; ++next_read) {
      wait(trips[reads[next_read]], back_at[reads[next_read]], moment);
    }
    if (moment < last) clock += durations[moment];
  }
  return waited;
}

}  // namespace

Cost plan_trips(std::vector<Trip>& trips, const std::vector<Cost>& durations,
                const LinkProfile& link) {
  if (trips.empty()) return 0;
  const auto num_moments = static_cast<int32_t>(durations.size());
  const bool is_cyclic = std::any_of(trips.begin(), trips.end(),
                                     [&](const Trip& trip) { return trip.needed > num_moments; });
  if (!is_cyclic) return run(trips, durations, 0, num_moments + 1, link);
  // The first step finds nothing of one before it, and the last nothing of one after it.
  constexpr int32_t kNumSteps = 4;
  constexpr int32_t kTaken = 2;
  std::vector<Trip> all;
  std::vector<Cost> all_durations;
  for (int32_t step = 0; step < kNumSteps; ++step) {
    for (Trip trip : trips) {
      for (int32_t* moment : {&trip.out, &trip.gone, &trip.back, &trip.needed}) {
        *moment += step * num_moments;
      }
      if (trip.needed <= kNumSteps * num_moments) all.push_back(trip);
    }
    all_durations.insert(all_durations.end(), durations.begin(), durations.end());
  }
  const Cost waited =
      run(all, all_durations, kTaken * num_moments, (kTaken + 1) * num_moments, link);
  for (size_t i = 0; i < trips.size(); ++i) {
    const Trip& taken = all[kTaken * trips.size() + i];
    trips[i].left = taken.left - kTaken * num_moments;
    trips[i].begins = taken.begins - kTaken * num_moments;
    trips[i].waited = taken.waited;
  }
  return waited;
}

}  // namespace coop
