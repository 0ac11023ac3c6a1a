// Times what the current stream of a device is given, without waiting for it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/clock.h"

namespace coop {

class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  // A timing of what comes next; negative: it cannot be timed now.
  virtual int32_t begin() = 0;
  virtual void end(int32_t timing) = 0;
  // Nanoseconds; negative: the device is not done with it.
  virtual double read(int32_t timing) = 0;
  // The number may be given again.
  virtual void drop(int32_t timing) = 0;
};

// Where operators are done when they return.
class ClockStopwatch final : public Stopwatch {
 public:
  int32_t begin() override {
    if (unused_.empty()) {
      unused_.push_back(static_cast<int32_t>(ns_.size()));
      ns_.push_back(0);
    }
    const int32_t timing = unused_.back();
    unused_.pop_back();
    ns_[timing] = -now_ns();
    return timing;
  }
  void end(int32_t timing) override { ns_[timing] += now_ns(); }
  double read(int32_t timing) override { return static_cast<double>(ns_[timing]); }
  void drop(int32_t timing) override { unused_.push_back(timing); }

 private:
  std::vector<int64_t> ns_;
  std::vector<int32_t> unused_;
};

}  // namespace coop
