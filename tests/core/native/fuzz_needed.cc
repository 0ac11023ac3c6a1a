// Any program, with room for everything, and in the budget that it is then said to need, in which
// nothing is evicted. Nor is anything in the budget that a run says which has to evict.
#include <map>

#include "core/simulate/simulator.h"
#include "input.h"

namespace {

using coop::Bytes;

using Kind = coop::EntryKind;

constexpr Bytes kAlignment = 64;
constexpr Bytes kAmple = Bytes{1} << 40;
constexpr const char* kPolicies[] = {"coop", "coop-paper", "dtr", "dte"};

// The trace does not depend on what happens to it: it can be run in any budget.
class Program {
 public:
  explicit Program(Input& input) : input_(input) {
    while (!input_.empty()) step();
  }
  const coop::Trace& trace() const { return trace_; }

 private:
  int64_t any() {
    auto it = live_.begin();
    std::advance(it, input_.below(static_cast<uint32_t>(live_.size())));
    return it->first;
  }

  void add(Kind kind, int64_t storage = 0, Bytes bytes = 0) {
    coop::Entry entry{kind};
    entry.storage = storage;
    entry.bytes = bytes;
    trace_.entries.push_back(entry);
  }

  void add_operator() {
    coop::OperatorEntry op;
    op.cost = 1 + input_.below(1000);
    op.side = input_.flag() ? coop::Side::kLeft : coop::Side::kRight;
    op.replayable = input_.below(10) != 0;
    op.backward = input_.flag();
    for (uint32_t i = input_.below(4); i > 0; --i) op.inputs.push_back(any());
    if (input_.below(3) == 0) {
      const int64_t written = any();
      const bool is_input =
          std::find(op.inputs.begin(), op.inputs.end(), written) != op.inputs.end();
      (is_input || input_.flag() ? op.writes : op.overwrites).push_back(written);
      if (!is_input) op.inputs.push_back(written);
    }
    op.undefined = op.writes.empty() && op.overwrites.empty() && input_.below(5) == 0;
    for (uint32_t i = input_.below(4); i > 0; --i) {
      op.outputs.push_back(++num_storages_);
      op.output_bytes.push_back(input_.below(12 * kAlignment));
      live_[num_storages_] = true;
    }
    if (input_.below(3) == 0) {
      using Step = coop::MemoryStep::Kind;
      op.memory.push_back({Step::kTemporary, input_.below(8 * kAlignment)});
      const uint32_t freed_after = input_.below(4);
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        op.memory.push_back({Step::kOutput, static_cast<int64_t>(i)});
        if (freed_after == i) op.memory.push_back({Step::kFree, 0});
      }
    }
    coop::Entry entry{Kind::kOperator};
    entry.operator_index = static_cast<int32_t>(trace_.operators.size());
    trace_.operators.push_back(op);
    trace_.tells_backward = true;
    trace_.entries.push_back(entry);
  }

  void step() {
    const uint32_t choice = input_.below(20);
    if (live_.empty() || choice < 2) {
      add(Kind::kRoot, ++num_storages_, input_.below(12 * kAlignment));
      live_[num_storages_] = true;
    } else if (choice < 12) {
      add_operator();
    } else if (choice < 16) {
      const int64_t id = any();
      add(Kind::kFree, id);
      live_.erase(id);
    } else if (choice == 16) {
      add(Kind::kGradient, any());
    } else if (choice == 17) {
      in_step_ = !in_step_;
      add(in_step_ ? Kind::kBeginStep : Kind::kEndStep);
    } else if (choice == 18) {
      add(Kind::kLeaf, any());
    } else {
      add(Kind::kUnseenWrite, any());
    }
  }

  Input& input_;
  coop::Trace trace_;
  std::map<int64_t, bool> live_;
  int64_t num_storages_ = 0;
  bool in_step_ = false;
};

coop::SimulationResult run(const coop::Trace& trace, coop::Config config, Bytes budget) {
  config.budget = budget;
  return coop::Simulator(config).run(trace);
}

// Nothing is evicted in the budget that a run says it needs. An estimate is off by an eighth at
// most; without sides nothing is said of how far.
void check(const coop::Trace& trace, const coop::Config& config, const coop::Stats& said) {
  if (said.needed_is_estimate && !config.partition) return;
  const Bytes more = said.needed_is_estimate ? said.needed / 8 / kAlignment * kAlignment : 0;
  const coop::SimulationResult again = run(trace, config, said.needed + more);
  EXPECT(again.fitted && again.stats.num_evictions == 0);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  coop::Config config;
  config.alignment = kAlignment;
  config.inplace = input.flag();
  config.small_bytes = input.flag() ? 3 * kAlignment : 0;
  const uint32_t variant = input.below(8);
  if (variant < 4) config.policy = coop::PolicyOptions::named(kPolicies[variant]);
  config.partition = variant != 4;
  const Program program(input);
  const coop::Trace& trace = program.trace();
  const coop::SimulationResult ample = run(trace, config, kAmple);
  EXPECT(ample.fitted && ample.stats.num_evictions == 0);
  const Bytes needed = ample.stats.needed;
  EXPECT(needed >= ample.stats.peak);
  if (ample.stats.peak == 0) return 0;
  check(trace, config, ample.stats);
  // So does what a run is told that has to evict. Without small values it is no less.
  for (const Bytes eighths : {7, 6, 4}) {
    const Bytes budget = ample.stats.peak * eighths / 8 / kAlignment * kAlignment;
    if (budget == 0) break;
    const coop::SimulationResult tight = run(trace, config, budget);
    if (!tight.fitted) break;
    if (config.small_bytes == 0 && !tight.stats.needed_is_estimate) {
      EXPECT(tight.stats.needed >= needed);
    }
    if (tight.stats.needed != needed) check(trace, config, tight.stats);
  }
  return 0;
}
