// Steps repeat. What one step did is noted, and a schedule is made for the next that does the same:
// what is given up after which operator, what is recomputed before which, what stays though it is
// dead, and where everything lies. It is followed while operators come as foreseen. From the first
// that differs on the policy decides, as it does without (Rule 16): a schedule costs time if it is
// wrong, no bits.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/foresight/layout.h"
#include "core/foresight/making.h"
#include "core/foresight/preferences.h"
#include "core/foresight/schedule.h"
#include "core/foresight/step_log.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/space/space.h"

namespace coop {

class Foresight {
 public:
  // How much is looked at for a first schedule, and for a better one while it is followed: about
  // 0.2 s and 3 s of one core.
  static constexpr int64_t kFirstLooks = 20'000'000;
  static constexpr int64_t kMoreLooks = 300'000'000;

  Foresight(const Config& config, Graph& graph, const Space& space, Journal& journal)
      : enabled_(config.policy.foresight),
        in_background_(config.in_background),
        copy_room_{config.host_bytes, config.link},
        space_(space),
        graph_(graph),
        journal_(journal),
        log_(graph, space, journal, config.policy.foresight && config.host_bytes > 0) {}
  Foresight(const Foresight&) = delete;
  Foresight& operator=(const Foresight&) = delete;

  bool is_following() const { return followed_ != nullptr; }
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
  void wrote(const Value* value) {
    if (logging_) log_.wrote(value);
  }
  void aborted() {
    if (logging_) log_.take_back();
  }
  // Whether the schedule does anything before the operator that is about to run.
  bool acts_before_operator() const {
    if (!is_following()) return false;
    if (is_settling_) return true;
    const std::vector<int32_t>& first = followed_->schedule.first_before;
    const size_t op = log_.position();
    return op + 1 < first.size() && first[op] < first[op + 1];
  }
  // Calls act(kind, value) for what it does, in order; nothing if the operator's inputs are not
  // those that are foreseen.
  template <typename F>
  void begin_operator(const std::vector<Value*>& inputs, F&& act) {
    const Place place = here();
    if (std::exchange(is_settling_, false)) settle(act);
    if (here() != place || !brings_back(inputs)) return;
    const Schedule& schedule = followed_->schedule;
    for (int32_t i = schedule.first_before[place.op]; i < schedule.first_before[place.op + 1];
         ++i) {
      const Schedule::Action& action = schedule.before[i];
      if (action.brings_back()) {
        Value* value = value_of(action.item);
        const Replaying replaying(*this, action);
        if (value != nullptr && !value->is_resident()) act(action.kind, value);
      } else {
        let_go(action, act);
      }
      // It did not fit, or another thread has gone on meanwhile.
      if (here() != place) return;
    }
  }
  // Calls act(kind, value) for what the schedule does now, or does not want any more.
  template <typename F>
  void end_operator(F&& act) {
    if (!logging_) return;
    const bool followed = is_following();
    compare(log_.end_operator());
    if (is_following()) {
      const Schedule& schedule = followed_->schedule;
      const int32_t op = log_.position() - 1;
      for (int32_t i = schedule.first_after[op]; i < schedule.first_after[op + 1]; ++i) {
        let_go(schedule.after[i], act);
      }
    } else if (followed) {
      for_each_dead([&](Value* value) { act(Schedule::Action::Kind::kGiveUp, value); });
    }
  }
  // The step is over, and the next one has begun. What is dead by now is released first. Returns
  // what is to be moved now, for the schedule that is followed from here on: in this order each has
  // room. `may_move`: see Note [Moving roots].
  template <typename F>
  std::vector<Relocation> end_step(bool may_move, F&& release) {
    if (is_following()) {
      Known* known = std::exchange(followed_, nullptr);  // nothing is wanted any more
      for_each_dead(release);
      followed_ = known;
    }
    return end_step(may_move);
  }

  // --- what it advises --------------------------------------------------------------------------
  // Whether a value that nobody can see is worth its bytes now.
  bool wants(const Value* value) const {
    if (!is_following()) return false;
    const int32_t item = log_.item_of(value);
    return item >= 0 && item < static_cast<int32_t>(holds_.size()) && holds_[item];
  }
  // It is about to be brought back.
  void expect(const Value* value);
  // Whether what a replay has made besides is worth its bytes.
  bool takes(const Value* value) const;
  // A replay is about to write the value in place, which nobody can see. Whether it is read again
  // as it is: the next version has a place of its own then.
  bool keeps_when_written(const Value* value) const;
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
    Schedule schedule;  // empty: the policy decides
    std::vector<KnownRoot> roots;
    Preferences preferences;  // by which it was found
    Cost online_cost = 0;     // what the policy recomputed, and waited for copies
    Cost step_cost = 0;       // of all operators, when the schedule was made
    int num_made = 0;
    bool is_guess = false;     // scheduled when it was seen once, and not met again yet
    bool is_improved = false;  // a better one was looked for
    int64_t used = 0;          // the step in which it was last met
  };
  // Where in which schedule it is. A replay lets other threads run, which may go on to another
  // operator, schedule or step.
  struct Place {
    const Known* known;
    int64_t step;
    int32_t op;

    bool operator==(const Place&) const = default;
  };
  // One action of the schedule, while it is done.
  class Replaying {
   public:
    Replaying(Foresight& owner, const Schedule::Action& action) : owner_(owner) {
      owner_.action_ = &action;
      owner_.acting_ = owner_.here();
    }
    ~Replaying() {
      owner_.action_ = nullptr;
      owner_.expected_ = {};
    }
    Replaying(const Replaying&) = delete;
    Replaying& operator=(const Replaying&) = delete;

   private:
    Foresight& owner_;
  };
  // What the running replay allocates and has not allocated yet, in the schedule's results.
  struct Expected {
    Place place{};
    int32_t begin = 0;
    int32_t next = 0;
    int32_t end = 0;
  };
  static constexpr size_t kMostKnown = 8;
  // How often a schedule is made anew for a step that did not go as foreseen, or whose costs became
  // known better.
  static constexpr int kMostMade = 6;
  // What lies in the way is the same in every step, or in every other; after so many it may be that
  // it has changed.
  static constexpr int kMostWaits = 8;
  // Most steps repeat: a new one gets its schedule at once, unless so many did not come again.
  static constexpr int kMostGuesses = 1;

  // Null when it is gone.
  Value* value_of(int32_t item) const;
  Place here() const { return {followed_, journal_.step, log_.position()}; }
  bool is_expecting() const {
    return is_following() && expected_.begin != expected_.end && expected_.place == here();
  }
  // What is given up, or begins to leave.
  template <typename F>
  void let_go(const Schedule::Action& action, F&& act) {
    if (action.kind == Schedule::Action::Kind::kGiveUp) holds_[action.item] = false;
    Value* value = value_of(action.item);
    if (value != nullptr && value->is_resident()) act(action.kind, value);
  }
  // Brings the roots to where the schedule has them when a step begins: first all that lie
  // elsewhere leave.
  template <typename F>
  void settle(F&& act) {
    using Kind = Schedule::Action::Kind;
    const Place place = here();
    const Schedule& schedule = followed_->schedule;
    settled_ = true;
    for (const Kind kind : {Kind::kGiveUp, Kind::kCopyIn}) {
      for (const Schedule::Action& action : schedule.roots) {
        Value* value = value_of(action.item);
        const Bytes address = schedule.results[action.first_result].address;
        if (value == nullptr || value->offset == address) continue;
        const bool comes = kind == Kind::kCopyIn && address >= 0 && !value->is_resident();
        if (kind == Kind::kGiveUp ? !value->is_resident() : !comes) continue;
        const Replaying replaying(*this, action);
        act(kind, value);
        if (here() != place) return;
        if (comes ? value->offset == address : !value->is_resident()) continue;
        give_up();
        return;
      }
    }
  }
  void compare(uint64_t mark);
  void follow(Known* known);
  bool brings_back(const std::vector<Value*>& inputs) const;
  std::vector<Relocation> end_step(bool may_move);
  void judge(Known& known, Cost cost);
  void make(Known& known, bool may_stay);
  void improve(Known& known);
  void begin_making(Known& known, Cost most_cost, int64_t most_looks);
  Layout layout_of(const StepProgram& program, const std::vector<KnownRoot>& roots) const;
  std::vector<Relocation> take_made(const Known* seen);
  Known* find_known();
  template <typename F>
  void for_each_dead(F&& f) {
    for (int32_t item = 0; item < log_.num_items(); ++item) {
      Value* value = log_.value_of(item);
      if (value != nullptr && value->is_resident() && value->storage == nullptr) f(value);
    }
  }

  const bool enabled_;
  const bool in_background_;
  const CopyRoom copy_room_;
  const Space& space_;
  Graph& graph_;
  Journal& journal_;
  StepLog log_;
  bool logging_ = false;
  std::vector<uint64_t> marks_;  // of this step
  std::vector<std::unique_ptr<Known>> known_;
  int num_guesses_ = 0;  // steps that were scheduled when seen once, and did not come again
  std::unique_ptr<Making> making_;  // null: none
  Known* made_for_ = nullptr;
  bool may_stay_ = false;  // its schedule, if no other is made
  bool may_move_ = false;  // what the optimizer has written, now
  int num_waits_ = 0;      // steps after which it was not taken yet
  Known* followed_ = nullptr;
  Known* tried_ = nullptr;                    // what this step began to follow last
  bool is_settling_ = false;                  // roots may not be where the schedule has them
  bool is_new_ = false;                       // a schedule was taken that was not followed yet
  bool settled_ = false;                      // in this step: what that takes is not the schedule's
  std::vector<bool> holds_;                   // by item: it stays though it is dead
  const Schedule::Action* action_ = nullptr;  // that is being done
  Place acting_{};                            // there
  Expected expected_;
  int64_t evictions_before_ = 0;  // this step
  Cost cost_before_ = 0;
};

}  // namespace coop
