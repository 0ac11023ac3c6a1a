// Steps repeat. What one step did is noted, and once another step has done the same, a schedule is
// made for it: what is given up after which operator, what stays though it is dead, and where
// everything lies. It is followed while operators come as foreseen. From the first that differs on
// the policy decides, as it does without (Rule 16): a schedule costs time if it is wrong, no bits.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/foresight/schedule.h"
#include "core/foresight/step_log.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/space/space.h"

namespace coop {

class Foresight {
 public:
  Foresight(bool enabled, Graph& graph, const Space& space, Journal& journal)
      : enabled_(enabled), space_(space), journal_(journal), log_(graph, space, journal) {}
  Foresight(const Foresight&) = delete;
  Foresight& operator=(const Foresight&) = delete;

  bool is_following() const { return followed_ != nullptr; }
  // And everything has its place.
  bool is_placing() const { return is_following() && followed_->schedule.has_places; }
  // Something does not fit: the schedule is of no use.
  void give_up() {
    if (!is_following()) return;
    followed_ = nullptr;
    ++journal_.stats.num_left;
  }

  // --- what the others tell it, of what the program does: a test of one flag where it is off -----
  void allocated(Value* value) {
    if (logging_) log_.allocated(value);
  }
  // Its storage is gone. A root that a recipe reads keeps its bytes.
  void died(Value* value) {
    if (logging_ && !(value->is_root() && value->users != nullptr)) log_.ended(value);
  }
  void destroyed(Value* value) {
    if (logging_ && value->is_root()) log_.ended(value);
  }
  void overwritten(Value* value, Value* next) {
    if (logging_) log_.overwritten(value, next);
  }
  void fixed(const Value* value) {
    if (logging_) log_.fixed(value);
  }
  void ran(const Recipe* recipe, const std::vector<Value*>& used, Cost cost) {
    if (logging_) log_.ran(recipe, used, cost);
  }
  void made(Value* value, const Recipe* recipe) {
    if (logging_) log_.made(value, recipe);
  }
  void aborted() {
    if (logging_) log_.take_back();
  }
  // Calls release(value) for what the schedule gives up now, or does not want any more.
  template <typename F>
  void end_operator(F&& release) {
    if (!logging_) return;
    const bool followed = is_following();
    compare(log_.end_operator());
    if (is_following()) {
      followed_->schedule.for_each_released(log_.position() - 1, [&](int32_t item) {
        Value* value = log_.value_of(item);
        if (value != nullptr && value->is_resident()) release(value);
      });
    } else if (followed) {
      for_each_dead([&](Value* value) { release(value); });
    }
  }
  // The step is over, and the next one has begun. What is dead by now is released first.
  template <typename F>
  void end_step(F&& release) {
    if (is_following()) {
      Known* known = std::exchange(followed_, nullptr);  // nothing is wanted any more
      for_each_dead(release);
      followed_ = known;
    }
    end_step();
  }

  // --- what it advises --------------------------------------------------------------------------
  // Whether a value that nobody can see is worth its bytes now.
  bool wants(const Value* value) const {
    return is_following() && followed_->schedule.wants(log_.item_of(value), log_.position());
  }
  // A replay is about to make the outputs.
  void expect(const Recipe& recipe);
  // Where what is allocated next is to lie: by the program, or by a replay. Tried in turn.
  struct Places {
    Bytes first = -1;  // -1: none
    Bytes second = -1;
  };
  Places next_places() const;
  Places next_places_of_replay(Bytes bytes);

 private:
  // A step that was seen, by the marks of its operators.
  struct Known {
    std::vector<uint64_t> marks;
    Schedule schedule;   // empty: the policy decides
    Schedule best;       // of those that were tried; empty: the policy was
    Cost best_cost = 0;  // what was recomputed with it
    size_t num_tried = 0;
    bool is_settled = false;  // no other schedule is tried
    int64_t used = 0;         // the step in which it was last met
  };
  struct Expected {
    Bytes bytes;
    Bytes address;
  };
  static constexpr size_t kMostKnown = 8;

  void compare(uint64_t mark);
  void end_step();
  void judge(Known& known, Cost replay_cost);
  bool make_schedule(Known& known);
  Known* find_known();
  template <typename F>
  void for_each_dead(F&& f) {
    for (int32_t item = 0; item < log_.num_items(); ++item) {
      Value* value = log_.value_of(item);
      if (value != nullptr && value->is_resident() && value->storage == nullptr) f(value);
    }
  }

  const bool enabled_;
  const Space& space_;
  Journal& journal_;
  StepLog log_;
  bool logging_ = false;
  std::vector<uint64_t> marks_;  // of this step
  std::vector<std::unique_ptr<Known>> known_;
  Known* followed_ = nullptr;
  Known* tried_ = nullptr;  // what this step began to follow last
  std::vector<Expected> expected_;
  int64_t evictions_before_ = 0;  // this step
  Cost replay_cost_before_ = 0;
};

}  // namespace coop
