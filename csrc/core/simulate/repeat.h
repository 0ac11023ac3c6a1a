// A trace goes on as it ended: steps repeat, and a schedule is followed only after a few of them.
#pragma once

#include "core/simulate/entry.h"

namespace coop {

// The trace with its last step repeated until it has `num_steps`. What the step made takes the
// place of what the step before made. The same trace if its last two steps differ, or if it has
// that many steps.
Trace repeat_last_step(const Trace& trace, int64_t num_steps);

}  // namespace coop
