// What runs on this thread: an operator, or a replay.
#pragma once

#include "core/host.h"
#include "core/types.h"

namespace coop {

class Loans;

// In one piece: every operator looks at it.
struct Running {
  // Which side the allocations of the operator go to.
  Side side = Side::kLeft;
  // Whether the operator is tried again when one of them does not fit.
  bool repeatable = false;
  // Whether it is a replay.
  bool replaying = false;
  // How many operators and replays run, one inside the other.
  int depth = 0;
  // The operator, for events.
  Origin origin;
  // Allocations that failed so far. Some libraries catch the error and go on with another
  // algorithm, whose results differ in their last bits.
  int64_t failed_allocations = 0;
  Ends ends;
  // What operators make is held too (above.h); null: it is not.
  Loans* hold = nullptr;
};
// This thread's. Each call is one of the loader's: hold the reference for what belongs together.
Running& running();
// Of the last allocation that failed.
Shortage& last_shortage();

// An operator runs: where its allocations go, that they are its own, and whether it is tried again
// when one does not fit.
class RunScope {
 public:
  RunScope(Running& thread, Side side, bool repeatable, bool replaying = false)
      : running_(thread),
        side_(running_.side),
        repeatable_(running_.repeatable),
        replaying_(running_.replaying),
        origin_(running_.origin) {
    running_.side = side;
    running_.repeatable = repeatable;
    running_.replaying = replaying;
    ++running_.depth;
  }
  ~RunScope() {
    running_.side = side_;
    running_.repeatable = repeatable_;
    running_.replaying = replaying_;
    running_.origin = origin_;
    --running_.depth;
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  Running& running_;
  // As they were.
  const Side side_;
  const bool repeatable_;
  const bool replaying_;
  const Origin origin_;
};

// An allocation failed and the operator went on with something else: its results need not be the
// same bits. Where cuDNN's benchmark mode chooses by trying, they never are.
bool went_another_way(const Running& thread, int64_t failures);

}  // namespace coop
