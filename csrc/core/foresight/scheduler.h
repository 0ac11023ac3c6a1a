// Chooses what of a step program is recomputed. It begins with everything kept from its first use
// to its last. At the operator that needs the most memory it gives up what costs least for each
// byte, until everything fits. What is recomputed needs what it is made from at that time: those
// needs are uses like the program's own. A dead value may be kept for them, where that is cheaper
// than to recompute it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/foresight/needs.h"
#include "core/foresight/preferences.h"
#include "core/foresight/profile.h"
#include "core/foresight/step_program.h"
#include "core/foresight/timeline.h"

namespace coop {

class Scheduler {
 public:
  // All of it outlives the scheduler.
  Scheduler(const StepProgram& program, const Preferences& preferences);

  // Gives up what it must until about everything fits. False: it does not.
  bool fit(Bytes room);
  // What it has looked at so far: a measure of time that is the same in every run.
  int64_t num_looks() const { return num_looks_; }
  const std::vector<Needs>& needs() const { return needs_; }
  // What the needs mean exactly. While it gives up, it only estimates that.
  void update(const Timeline& timeline);
  // Keeps what there is room for after all, the most expensive first. False: nothing.
  bool keep_what_fits(const Timeline& timeline, Bytes room);

 private:
  // A need that is not to be kept any more.
  struct Gap {
    double price;
    int32_t item;
    int32_t time;
    int32_t instead;  // an ancestor that is kept; -1: none
  };

  bool is_there(int32_t item, int32_t time) const;
  bool is_near(int32_t item, int32_t time) const;
  bool can_bridge(int32_t item, int32_t from, int32_t to) const;
  bool can_stay(int32_t item, int32_t from, int32_t to) const;
  static bool is_later(const Gap& a, const Gap& b);
  bool find_gaps(int32_t op, std::vector<Gap>& gaps);
  bool set_price(Gap& gap, int32_t op);
  bool is_replayed(int32_t maker, int32_t time) const;
  template <typename F>
  void for_each_sibling(const Gap& gap, int32_t op, F&& f) const;
  double weight(int32_t item) const {
    return preferences_.weights.empty() ? 1 : preferences_.weights[item];
  }
  Cost closure_cost(int32_t item, int32_t time, int32_t kept, bool collect);
  void give_up(const Gap& gap);
  void make_again(int32_t item, int32_t time, int32_t kept);
  void require(int32_t item, int32_t time, bool keep);
  void end_passing(int32_t item, size_t need);
  void set_passing(int32_t time, Bytes bytes);

  const StepProgram& program_;
  const Preferences& preferences_;
  Bytes room_ = 0;
  const int32_t near_;
  const int32_t most_peaks_;
  Profile profile_;
  std::vector<Needs> needs_;        // by item
  std::vector<Bytes> passing_;      // by operator: the most that a replay for it needs
  std::vector<int32_t> ancestors_;  // of the last closure, the nearest ones
  std::vector<int32_t> queue_;
  std::vector<int64_t> op_mark_;
  int64_t round_ = 0;
  int32_t lowered_ = -1;  // the moment that is made to fit
  bool is_first_ = true;  // nothing was given up yet
  int64_t num_looks_ = 0;
};

}  // namespace coop
