// A step with its replays, one after the other: what a schedule means, exactly. Before an operator
// runs, what it needs is recomputed, in the order in which it was first made. Replays that nobody
// reads any more are left out.
//
//   moments of operator i:   replay, replay, ..., run       first_moment(i) ... run_moment(i)
//
// A stay is one item's time in memory: from the moment that makes it to the last that reads it.
//
// What is copied leaves by a link, and comes back by it. Each way is a queue. A copy out begins
// when the last reader has run, and the stay ends when it is complete; a copy in begins as late as
// it may, and with it the next stay. Moments take as long as what runs in them, so what has to be
// waited for is known: whoever needs room that is not free yet, or bytes that have not come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/foresight/needs.h"
#include "core/foresight/step_program.h"
#include "core/foresight/trips.h"
#include "core/types.h"

namespace coop {

class Timeline {
 public:
  struct Replay {
    int32_t time;   // before this operator runs
    int32_t maker;  // the operator that runs again
    bool live = false;
  };
  struct Stay {
    int32_t item;
    int32_t time;            // the operator at which it begins
    int32_t begin;           // moment; of a root, below 0: in the step before
    int32_t end;             // the moment from which on it is gone; of a root, in the next step too
    bool replayed;           // else the program made it
    bool released;           // somebody has to give it up; else it ends with its storage
    bool outlives;           // its storage, for a while
    int32_t takes = -1;      // the stay whose memory it takes
    bool was_read = false;   // or it stays for another reason
    bool copied = false;     // its copy brings it back
    int32_t away_begin = 0;  // of what is copied: see Need
    int32_t away_end = 0;
    int32_t first_read = StepProgram::kNever;  // moment
  };

  // The needs are by item; of what cannot be made again they are empty. `reserved` are bytes by
  // operator that are not to be used; none if it is empty.
  Timeline(const StepProgram& program, const std::vector<Needs>& needs,
           const std::vector<Bytes>& reserved = {}, const LinkProfile& link = {});

  // The needs that are left: without those of replays that nobody reads.
  std::vector<Needs> needs() const;
  // Whether everything that is read is there.
  bool is_whole() const { return whole_; }
  Cost replay_cost() const { return replay_cost_; }
  Cost waited() const { return waited_; }
  // What the step takes besides its operators.
  Cost cost() const { return replay_cost_ + waited_; }
  int32_t num_moments() const { return static_cast<int32_t>(bytes_.size()); }
  int32_t first_moment(int32_t op) const { return op == 0 ? 0 : run_moments_[op - 1] + 1; }
  int32_t run_moment(int32_t op) const { return run_moments_[op]; }
  int32_t operator_at(int32_t moment) const;
  // The moment from which on what died before an operator ended is gone: before that operator, or,
  // if it had allocated before, after it.
  int32_t death_moment(int32_t op, int32_t freed) const;
  // All that is held then, and what is reserved.
  const std::vector<Bytes>& bytes() const { return bytes_; }
  Bytes bytes_before(int32_t op) const;  // the most while its inputs are brought back
  Bytes bytes_running(int32_t op) const { return bytes_[run_moments_[op]]; }
  Bytes peak() const { return *std::max_element(bytes_.begin(), bytes_.end()); }
  const std::vector<Stay>& stays() const { return stays_; }
  // In order of time and maker. Their moments are in that order.
  const std::vector<Replay>& replays() const { return replays_; }
  int32_t moment_of(size_t replay) const {
    return static_cast<int32_t>(replay) + replays_[replay].time;
  }
  // How long a moment takes, but for what is waited.
  Cost duration(int32_t moment) const { return durations_[moment]; }
  const std::vector<Trip>& trips() const { return trips_; }
  // Of a trip: the stays before and after it.
  const std::pair<int32_t, int32_t>& between(size_t trip) const { return between_[trip]; }
  // Of all that is copied.
  Bytes saved_bytes() const;
  // The stays of an item, in order.
  int32_t first_stay(int32_t item) const { return first_stays_[item]; }
  int32_t end_stays(int32_t item) const { return first_stays_[item + 1]; }

 private:
  void add_stays(int32_t item, const Needs& needs);
  int32_t find_stay(int32_t item, int32_t time) const;
  void find_reads();
  void read(int32_t item, int32_t time, int32_t moment);
  void end_stays();
  void share_memory();
  void find_durations();
  void add_root_stays(Stay stay, const Needs& needs);
  void add_trip(int32_t before, int32_t after, bool is_out);
  void add_trips(int32_t item);
  void add_root_trips(int32_t item);
  void plan_copies(const LinkProfile& link);
  int32_t half_of(int32_t moment, bool is_end) const;
  void set_copied(Needs& list, int32_t stay, int32_t before) const;
  void count_bytes(const std::vector<Bytes>& reserved);
  int32_t death_moment(const StepProgram::Item& item) const;

  const StepProgram* program_;
  bool whole_ = true;
  Cost replay_cost_ = 0;
  Cost waited_ = 0;
  std::vector<Replay> replays_;
  std::vector<int32_t> run_moments_;
  std::vector<Stay> stays_;
  std::vector<int32_t> first_stays_;  // by item, and one more
  std::vector<Bytes> bytes_;          // by moment
  std::vector<Cost> durations_;       // by moment
  std::vector<Trip> trips_;
  std::vector<std::pair<int32_t, int32_t>> between_;
};

}  // namespace coop
