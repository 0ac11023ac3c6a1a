// The core with a host that has no memory: runs traces, and predicts what the engine decides.
//
// Contents are simulated as 64-bit cookies, one per block: an operator's results are a hash of its
// number and of the cookies it reads. A replay that reads anything but what the operator read the
// first time makes another cookie, and that is an error.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/core.h"
#include "core/simulate/entry.h"

namespace coop {

struct SimulatedRecipe;
struct SavedCookie;

struct SimulationResult {
  bool fitted = false;
  bool gave_up = false;  // it recomputed too much within a step
  Stats stats;
  Shortage shortage;  // when it did not fit
  int64_t failed_entry = -1;
  std::vector<Stats> steps;          // at the end of each
  std::vector<int32_t> num_replays;  // by operator of the trace
};

class Simulator final : public Host {
 public:
  // Traces must outlive it.
  explicit Simulator(const Config& config);
  ~Simulator() override;

  void apply(const Trace& trace, const Entry& entry);  // throws OutOfBudget
  // Gives up where a step recomputes for more than `most_replay` times the longest step of the
  // trace: near the smallest budget that can be hundreds of times.
  SimulationResult run(const Trace& trace,
                       double most_replay = std::numeric_limits<double>::infinity());

  Core& core() { return core_; }
  Storage* storage(int64_t id) const;
  // The storage dies, and its block waits for the fence.
  void free_after(int64_t id, std::unique_ptr<Fence> fence);
  // The simulated content of a resident storage, and what it must be.
  uint64_t cookie(int64_t id) const;

  void release(Storage&) override {}
  void restore(Storage&) override {}
  void copy(Value& to, const Value& from, Bytes bytes) override;
  void move(Value& value, Bytes from) override;
  bool may_move_gradients() const override { return moves_gradients_; }
  bool may_retry() const override { return repeatable_; }
  SavedBytes* new_saved_bytes(const Value& value) override;
  bool copy_out(const Value& value, const HostExtents& to, double last_use) override;
  void placed(const Value& value) override { end_copies(value.offset, value.bytes); }
  Storage* copy_in(const Value& value, const HostExtents& from, bool later) override;
  void arrived(const Value& value) override { arriving_.erase(value.offset); }
  bool is_copy(const Value& value, const HostExtents& extents) override {
    return host_cookies_.at(extents.front().offset) == cookie_of(value);
  }

 private:
  friend struct SimulatedRecipe;
  friend struct SavedCookie;

  // Something runs that can be tried again, or cannot.
  class Running;
  // Thrown by a replay; ends the simulation.
  struct GaveUp {};

  void begin(const OperatorEntry& op, const std::vector<Storage*>& inputs);
  // Returns the storages that it made.
  std::vector<Storage*> run_until_it_fits(const OperatorEntry& op,
                                          const std::vector<Storage*>& inputs);
  void run_operator(const Trace& trace, int32_t index);
  // Runs the memory steps; storages of the outputs come back in `outputs`.
  void run_memory(const OperatorEntry& op, Storage** outputs, bool replaying);
  // Brings it back, if it fits: else it stays recomputable.
  bool bring_back(Storage* storage);
  void add_root(int64_t id, Storage* storage);
  void count_replay(int32_t index, Cost cost);
  void check_patience() const {
    if (replay_cost_ > most_replay_cost_) throw GaveUp();
  }
  // To be read, or written.
  uint64_t cookie_of(const Value& value) const;
  void set_cookie(const Value& value, uint64_t cookie);
  static int64_t place_of(const Value& value);
  // Whoever uses these bytes next waits for the copies that use them.
  void end_copies(Bytes offset, Bytes bytes);

  Core core_;
  std::unordered_map<int64_t, Storage*> storages_;
  // By offset; of external memory, by its negative number.
  std::unordered_map<int64_t, uint64_t> cookies_;
  std::unordered_map<Bytes, uint64_t> host_cookies_;  // by offset in the pool
  // Blocks of the arena that copies read, or write, as long as nobody has waited for them.
  using Blocks = std::map<Bytes, Bytes>;  // bytes by offset
  Blocks leaving_;
  Blocks arriving_;
  std::unordered_map<Bytes, double> written_;  // by offset: when an operator did, last
  std::vector<int32_t> num_replays_;           // by operator of the trace
  Cost replay_cost_ = 0;                       // in this step
  Cost most_replay_cost_ = std::numeric_limits<Cost>::infinity();
  uint64_t num_executed_ = 0;
  bool moves_gradients_ = false;  // now
  bool repeatable_ = false;       // what runs now
  Operation operation_;
};

}  // namespace coop
