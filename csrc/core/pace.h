// Notices a step that recomputes for longer than a plain step takes. By costs, not by the clock:
// the same program says the same at the same operator.
#pragma once

#include <algorithm>

#include "core/types.h"

namespace coop {

class Pace {
 public:
  // Costs of the whole run so far: of the operators that the program asked for, and of replays.
  void replayed(Cost compute, Cost replay) {
    if (noticed_) return;
    const Cost own = compute - compute_before_;
    // Before the first step has ended it is not known how long one takes. A backward pass takes
    // about twice as long as the forward pass before it.
    constexpr Cost kPasses = 3;
    const Cost plain = longest_ > 0 ? std::max(longest_, own) : kPasses * own;
    if (replay - replay_before_ > plain) notice(plain, replay);
  }
  void step_ended(Cost compute, Cost replay) {
    const Cost own = compute - compute_before_;
    if (!noticed_ && replay - replay_before_ > own) notice(own, replay);
    longest_ = std::max(longest_, own);
    compute_before_ = compute;
    replay_before_ = replay;
  }

  // What is replayed from now on is not a step's.
  void end() {
    noticed_ = true;
    is_due_ = false;
  }

  // Noticed, and nobody was told yet.
  bool is_due() const { return is_due_; }
  void told() { is_due_ = false; }
  Cost plain() const { return plain_; }    // of a step without replays, as far as is known
  Cost replay() const { return replay_; }  // of the step that was noticed, by then

 private:
  void notice(Cost plain, Cost replay) {
    noticed_ = is_due_ = true;
    plain_ = plain;
    replay_ = replay - replay_before_;
  }

  Cost compute_before_ = 0;  // this step
  Cost replay_before_ = 0;
  Cost longest_ = 0;  // step, without replays
  Cost plain_ = 0;
  Cost replay_ = 0;
  bool noticed_ = false;
  bool is_due_ = false;
};

}  // namespace coop
