// What operators take on a device, as it was measured.
//
// Note [Measured costs]
// A roofline misleads: on an H200 a batch norm takes 4.5 times as long as its bytes say, and an RNN
// half as long. So operators are timed in the first steps, by two marks in their stream which are
// read once the device has passed them: nothing waits. An operator is known by its name, its
// floating-point operations, and the bytes that it reads and makes. Its first run does not count:
// kernels are loaded and chosen then. The cost is the lower quartile of the others, where the
// device had enough to do: elsewhere the time between two marks is the host's, not the operator's.
//
// Costs change between steps only. Once everything was known for a few steps, timing ends, and it
// begins again when something new comes: what a schedule foresees can be compared with what it
// cost.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapter/storage/stopwatch.h"
#include "core/types.h"

namespace coop {

struct OpInfo;

// Invariants: a timing that is neither pending nor running is the stopwatch's to give; `cost` of an
// entry is negative until a step has ended in which it had a sample. Under the engine's lock.
class MeasuredCosts {
 public:
  static constexpr int32_t kNotTimed = -1;

  // Null: nothing is measured.
  explicit MeasuredCosts(std::unique_ptr<Stopwatch> watch) : watch_(std::move(watch)) {}

  // An operator is about to run. Returns its timing, which `end` or `drop` takes.
  int32_t begin() { return is_timing_ && watch_ != nullptr ? watch_->begin() : kNotTimed; }
  void drop(int32_t timing) {
    if (timing != kNotTimed) watch_->drop(timing);
  }
  // It has run. Returns what such operators take, or `estimate` where that is not known yet.
  Cost end(int32_t timing, const OpInfo& info, double flops, double bytes, Cost estimate);
  // Reads what the device has done by now.
  void end_step();

  // What is known, by operator: for the next process on such a device.
  std::unordered_map<uint64_t, Cost> table() const;
  void set_table(const std::unordered_map<uint64_t, Cost>& table);

 private:
  // Enough to tell the quartile, and few enough to keep.
  static constexpr size_t kMostSamples = 32;
  static constexpr size_t kMostPending = 100'000;
  // Timed on after the last step with something new; and in all, for programs that never repeat.
  static constexpr int kStepsAfterNew = 2;
  static constexpr int kMostTimedSteps = 64;

  struct Entry {
    Cost cost = -1;
    bool was_seen = false;    // so the next run counts
    bool is_changed = false;  // it has samples that the cost does not know
    std::vector<float> samples;
  };
  struct Pending {
    int32_t timing;
    bool counts;
    Entry* entry;  // of a map, whose elements stay where they are
  };

  uint64_t key(const OpInfo& info, double flops, double bytes);

  const std::unique_ptr<Stopwatch> watch_;
  bool is_timing_ = true;
  bool found_new_ = false;  // in this step
  int steps_to_go_ = kStepsAfterNew;
  int num_timed_steps_ = 0;
  std::unordered_map<uint64_t, Entry> entries_;
  std::vector<Pending> pending_;     // in the order of their operators
  std::vector<uint64_t> name_keys_;  // by the operator's number; 0: not yet
};

}  // namespace coop
