// A trace goes on as it ended: steps repeat, and a schedule is followed only after a few of them.
#pragma once

#include <vector>

#include "core/simulate/entry.h"

namespace coop {

struct Repeated {
  Trace trace;
  std::vector<size_t> origins;  // by entry: the one that it repeats, or is
};

// The trace with its last step repeated until it has `num_steps`. What the step made takes the
// place of what the step before made. The same trace if it has less than three steps or as many as
// that already, or if its last two differ: the first makes the optimizer's state.
Repeated repeat_last_step(const Trace& trace, int64_t num_steps);

}  // namespace coop
