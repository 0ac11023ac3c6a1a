// The core with a host that has no memory: runs traces, and predicts what the engine decides.
//
// Contents are simulated as 64-bit cookies, one per block: an operator's results are a hash of its
// number and of the cookies it reads. A replay that reads anything but what the operator read the
// first time makes another cookie, and that is an error.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/core.h"

namespace coop {

// One thing that happens in an operator's memory, in order.
struct MemoryStep {
  enum class Kind : uint8_t { kOutput, kTemporary, kFree, kRoot } kind;
  int64_t argument;  // index of the output; bytes of the temporary; index of the temporary; of a
                     // root
};

struct TraceOperator {
  int32_t op = 0;  // number of its name
  Cost cost = 0;
  Side side = Side::kRight;
  bool replayable = true;
  bool keep_old = false;  // a replay needs the old bytes of the roots it writes
  // For another device's price.
  double flops = 0;
  double moved_bytes = 0;
  bool half = false;
  bool backward = true;          // it may run in a backward pass, or in an optimizer
  std::vector<int64_t> inputs;   // storage ids, written ones included
  std::vector<int64_t> outputs;  // storage ids
  std::vector<Bytes> output_bytes;
  std::vector<int64_t> writes;      // storage ids, a subset of the inputs
  std::vector<int64_t> overwrites;  // storage ids: all bytes written, none read
  std::vector<int32_t> make_roots;  // indices of writes, then overwrites, that are made roots first
  std::vector<MemoryStep> memory;   // empty: the outputs in order
  std::vector<std::pair<int64_t, Bytes>> roots;  // made for others: storage ids and sizes
};

struct TraceEntry {
  enum class Kind : uint8_t {
    kOperator,
    kRoot,
    kFree,
    kPin,
    kUnpin,
    kEvict,
    kMaterialize,
    kBeginStep,
    kEndStep,
    kMakeRoot,
    kExternal,
    kExpose,
    kEndStepInside,
    kUnseenWrite,
    kLeaf
  } kind;
  int64_t storage = 0;
  Bytes bytes = 0;
  int32_t line = 0;  // for messages
  int32_t operator_index = 0;
};

struct Trace {
  std::vector<TraceEntry> entries;
  std::deque<TraceOperator> operators;  // records point at them, so they must not move
  bool tells_backward = false;          // some are said not to be part of a backward pass
};

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

  void apply(const Trace& trace, const TraceEntry& entry);  // throws OutOfBudget
  // Gives up where a step recomputes for more than `most_replay` times the longest step of the
  // trace: near the smallest budget that can be hundreds of times.
  SimulationResult run(const Trace& trace,
                       double most_replay = std::numeric_limits<double>::infinity());

  Core& core() { return core_; }
  Storage* storage(int64_t id) const;
  // The simulated content of a resident storage, and what it must be.
  uint64_t cookie(int64_t id) const;

  void replay(Record& record, Storage** outputs) override;
  void release(Storage&) override {}
  void restore(Storage&) override {}
  void copy(Value& to, const Value& from, Bytes bytes) override;
  void move(Value& value, Bytes from) override;
  bool may_move_gradients() const override { return moves_gradients_; }
  bool may_retry() const override { return repeatable_; }
  void retire(Record* record) override;
  Record* new_saving_record(const Value& value) override;
  void save(Record& record, const Value& value) override;

 private:
  void begin(const TraceOperator& op, const std::vector<Storage*>& inputs);
  void run_operator(const Trace& trace, int32_t index);
  // Runs the memory steps; storages of the outputs come back in `outputs`.
  void run_memory(const TraceOperator& op, Storage** outputs, bool replaying);
  void add_root(int64_t id, Storage* storage);
  uint64_t& cookie_of(const Value& value);

  Core core_;
  std::unordered_map<int64_t, Storage*> storages_;
  // By offset; of external memory, by its negative number.
  std::unordered_map<int64_t, uint64_t> cookies_;
  std::vector<int32_t> num_replays_;  // by operator of the trace
  Cost replay_cost_ = 0;              // in this step
  Cost most_replay_cost_ = std::numeric_limits<Cost>::infinity();
  uint64_t num_executed_ = 0;
  bool moves_gradients_ = false;  // now
  bool repeatable_ = false;       // what runs now
  Operation operation_;
};

}  // namespace coop
