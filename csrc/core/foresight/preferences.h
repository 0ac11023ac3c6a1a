// What may be one way or another when a schedule is made. No choice is best for every step, so many
// are tried, and the schedule that recomputes least is taken.
#pragma once

#include <cstdint>
#include <vector>

namespace coop {

struct Preferences {
  std::vector<double> weights;  // by item: its price is so many times what it costs; empty: once
  double instead = 1;           // the same, of keeping an ancestor instead
  double near = 0.005;          // what is recomputed stays for needs so near: a share of the step
  int32_t first_operator = -1;  // what does not fit there is given up first; -1: at the peak
  double room = 1;              // of the budget
  double link = 0;              // what the link's time costs, as a share of operators' time
};

}  // namespace coop
