// What is copied in a timeline: when it leaves and comes back, and who waits.
#include <algorithm>
#include <utility>

#include "core/foresight/timeline.h"

namespace coop {

namespace {

// In operators [from, to].
bool is_written(const StepProgram& program, int32_t root, int32_t from, int32_t to) {
  return std::any_of(program.root_writes.begin(), program.root_writes.end(),
                     [&](const StepProgram::RootWrite& write) {
                       return write.item == root && write.op >= from && write.op <= to;
                     });
}

}  // namespace

void Timeline::add_trip(int32_t before, int32_t after, bool is_out) {
  const Stay& from = stays_[before];
  const Stay& to = stays_[after];
  // Over the end of the step: moments go on counting.
  const int32_t size = program_->size();
  auto moment_of_op = [&](int32_t op) {
    return op < size ? first_moment(op) : num_moments() + first_moment(op - size);
  };
  const bool is_over = before >= after;
  const int32_t next_step = is_over ? num_moments() : 0;
  Trip trip;
  trip.bytes = program_->items[from.item].bytes;
  trip.is_out = is_out;
  trip.out = from.end;
  trip.gone = std::max(moment_of_op(to.away_begin), trip.out);
  trip.back = std::max(moment_of_op(to.away_end + 1), trip.gone);
  trip.needed = std::min(to.first_read, run_moments_[to.time]) + next_step;
  if (trip.back > trip.needed) {
    whole_ = false;  // it is needed while it has to be away
    trip.back = trip.gone = trip.needed;
  }
  trips_.push_back(trip);
  between_.emplace_back(before, after);
}

// A copy is good for all that follows, but for what has been made again meanwhile.
void Timeline::add_trips(int32_t item) {
  int32_t before = -1;
  bool is_saved = false;
  for (int32_t s = first_stays_[item]; s < first_stays_[item + 1]; ++s) {
    const Stay& stay = stays_[s];
    if (stay.begin >= stay.end) continue;
    if (stay.replayed) is_saved = false;
    if (stay.copied) add_trip(before, s, !std::exchange(is_saved, true));
    before = s;
  }
}

// Or written: a root is copied again then.
void Timeline::add_root_trips(int32_t item) {
  const int32_t first = first_stays_[item];
  const int32_t end = first_stays_[item + 1];
  const bool is_home = !stays_[first].copied;
  for (int32_t s = first; s < end; ++s) {
    if (!stays_[s].copied) continue;
    const int32_t before = s > first ? s - 1 : end - 1;
    const int32_t last_op = operator_at(stays_[before].end - 1);
    bool is_out = is_written(*program_, item, stays_[before].time, last_op);
    // At home it came over the end of the step: what was written after its last copy counts too.
    if (is_home && before == first) {
      is_out |= is_written(*program_, item, stays_[end - 1].time, program_->size());
    }
    add_trip(before, s, is_out);
  }
}

void Timeline::plan_copies(const LinkProfile& link) {
  for (int32_t item = 0; item < program_->num_items(); ++item) {
    if (program_->is_root(item)) {
      add_root_trips(item);
    } else {
      add_trips(item);
    }
  }
  waited_ = plan_trips(trips_, durations_, link);
  for (size_t t = 0; t < trips_.size(); ++t) {
    const auto& [from, to] = between_[t];
    const bool is_over = from >= to;
    Stay& before = stays_[from];
    const int32_t death = death_moment(program_->items[before.item]);
    before.end = trips_[t].left;
    before.outlives = !program_->is_root(before.item) && before.end > death;
    before.released = program_->is_root(before.item) || before.end != death;
    stays_[to].begin = trips_[t].begins - (is_over ? num_moments() : 0);
  }
}

Bytes Timeline::saved_bytes() const {
  Bytes sum = 0;
  int32_t last = -1;
  for (size_t t = 0; t < trips_.size(); ++t) {
    const int32_t item = stays_[between_[t].first].item;
    if (std::exchange(last, item) != item) sum += trips_[t].bytes;
  }
  return sum;
}

// The need of a copied stay: the first that is left. A root's first need may end a gap that began
// in the step before; its operators are counted from there on.
void Timeline::set_copied(Needs& list, int32_t s, int32_t before) const {
  const Stay& stay = stays_[s];
  const bool is_over = before >= s;
  const int32_t next_step = is_over ? program_->size() : 0;
  const auto need = std::lower_bound(list.begin(), list.end(), stay.time,
                                     [](const Need& a, int32_t time) { return a.time < time; });
  if (need == list.end() || (need == list.begin() && !is_over)) return;
  const int32_t last = is_over ? list.back().time : std::prev(need)->time;
  need->away_begin = std::max(stay.away_begin, last + 1);
  need->away_end = std::min(stay.away_end, need->time + next_step - 1);
  if (need->away_begin > need->away_end) return;
  need->kept = false;
  need->copied = true;
  need->gone_begin = half_of(stays_[before].end, /*is_end=*/false);
  need->gone_end = half_of(stay.begin + (is_over ? num_moments() : 0), /*is_end=*/true);
}

// The half of an operator (while its inputs are brought back, and while it runs) that a moment is
// of. Before it something was there, or, if it is the end of a time, from it on.
int32_t Timeline::half_of(int32_t moment, bool is_end) const {
  const int32_t steps = moment / num_moments();
  moment -= steps * num_moments();
  const int32_t op = operator_at(moment);
  const bool is_run =
      is_end ? moment > first_moment(op) && moment == run_moments_[op] : moment > first_moment(op);
  return 2 * (op + steps * program_->size()) + is_run;
}

}  // namespace coop
