// What leaves by the link and comes back, in the time of a step: moments that take so long, one
// after the other, and a queue each way. A copy out begins when it may, one in as late as it may.
// Whoever needs room or bytes that are not there yet waits, and so does all that comes after.
//
// Steps repeat. A trip may go over the end of a step: the moments of the next one go on counting.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace coop {

struct Trip {
  Bytes bytes = 0;
  bool is_out = false;  // its bytes are copied out; else they were before
  // Moments, each meaning its beginning.
  int32_t out = 0;     // its copy out may begin
  int32_t gone = 0;    // by then it is gone, whoever waits for that
  int32_t back = 0;    // its copy in may begin; not before it is gone
  int32_t needed = 0;  // it is read; not before it may begin to come back

  // What comes of that.
  int32_t left = 0;    // from then on it is gone
  int32_t begins = 0;  // its copy in begins
  Cost waited = 0;     // for it
};

// Fills in what comes of them. Returns how long is waited in a step.
Cost plan_trips(std::vector<Trip>& trips, const std::vector<Cost>& durations,
                const LinkProfile& link);

}  // namespace coop
