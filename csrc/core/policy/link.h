// The link between a device and main memory: what a copy costs, and when it would be done. Two
// directions that do not disturb each other; in each, one copy follows the other.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/model/value.h"
#include "core/types.h"

namespace coop {

class Link {
 public:
  Link(const LinkProfile& profile, bool is_on)
      : is_on_(is_on),
        out_{profile.latency_ns, profile.out_bytes_per_ns},
        in_{profile.latency_ns, profile.in_bytes_per_ns} {}

  bool is_on() const { return is_on_; }
  // It was measured.
  void set(const LinkProfile& profile) {
    out_.latency = in_.latency = profile.latency_ns;
    out_.bytes_per_ns = profile.out_bytes_per_ns;
    in_.bytes_per_ns = profile.in_bytes_per_ns;
  }

  // What it takes to copy so many bytes.
  Cost out_cost(Bytes bytes) const { return out_.cost(bytes); }
  Cost in_cost(Bytes bytes) const { return in_.cost(bytes); }
  // To let the value leave by a copy, and to bring it back: half of it, where its bytes are saved
  // already.
  Cost round_trip(const Value* value) const {
    return (value->is_saved() ? 0 : out_.cost(value->bytes)) + in_.cost(value->bytes);
  }
  // Sends bytes at `now`; when they have arrived.
  double send_out(double now, Bytes bytes) { return out_.send(now, bytes); }
  double send_in(double now, Bytes bytes) { return in_.send(now, bytes); }

 private:
  struct Direction {
    Cost latency;
    double bytes_per_ns;
    double free_at = 0;  // when what was sent before has arrived

    // Whole nanoseconds, as all costs are.
    Cost cost(Bytes bytes) const {
      return std::ceil(latency + static_cast<double>(bytes) / bytes_per_ns);
    }
    double send(double now, Bytes bytes) {
      free_at = std::max(now, free_at) + cost(bytes);
      return free_at;
    }
  };

  const bool is_on_;
  Direction out_;
  Direction in_;
};

}  // namespace coop
