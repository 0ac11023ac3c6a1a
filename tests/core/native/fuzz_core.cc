// Any sequence of operators and requests in a tight budget. The simulator refuses a replay that
// reads anything but what the operator read the first time; here, too, no content is lost or wrong,
// whatever fails in between, and leaving the budget brings everything back.
#include <algorithm>
#include <map>
#include <optional>

#include "core/simulate/simulator.h"
#include "input.h"

namespace {

using coop::Bytes;
using coop::Entry;

constexpr Bytes kAlignment = 64;
using Kind = coop::EntryKind;

coop::Config draw_config(Input& input) {
  coop::Config config;
  config.alignment = kAlignment;
  config.budget = kAlignment * (4 + input.below(124));
  const uint32_t policy = input.below(4);
  if (policy >= 2) config.policy = coop::PolicyOptions::dte();
  if (policy == 2) config.policy.search = coop::PolicyOptions::Search::kValue;
  const uint32_t switches = input.byte();
  if ((switches & 1) != 0) config.policy = config.policy.without_window();
  config.partition = (switches & 2) == 0;
  config.inplace = (switches & 4) == 0;
  config.quiet_after = (switches & 8) == 0 ? 0 : 1;
  constexpr Bytes kSmall[] = {0, 0, kAlignment, 3 * kAlignment};
  config.small_bytes = kSmall[input.below(4)];
  // Copies in main memory, in a pool of any size, cheap or expensive.
  constexpr Bytes kHost[] = {0, 0, 8 * kAlignment, 512 * kAlignment};
  config.host_bytes = kHost[(switches >> 4) & 3];
  config.link = {(switches & 64) != 0 ? 25.0 : 1.0, 1.0, 0};
  return config;
}

struct Live {
  uint64_t cookie;
  int keeps = 0;
};

class Program {
 public:
  explicit Program(Input& input) : input_(input), simulator_(draw_config(input)) {
    if (input_.flag()) simulator_.core().log_events(true);
    // Quiet from the start, if ever.
    apply(Kind::kEndStep);
  }

  void run() {
    while (!input_.empty()) {
      step();
      check();
    }
    leave();
  }

 private:
  int64_t any() {
    auto it = live_.begin();
    std::advance(it, input_.below(static_cast<uint32_t>(live_.size())));
    return it->first;
  }

  bool apply(const Entry& entry) {
    trace_.entries.push_back(entry);
    copy_failed_ = false;
    try {
      simulator_.apply(trace_, entry);
      return true;
    } catch (const coop::OutOfBudget& error) {
      EXPECT(error.shortage.held <= error.shortage.budget);
      return false;
    } catch (const coop::CopyFailed&) {
      copy_failed_ = true;
      return false;
    }
  }

  bool apply(Kind kind, int64_t storage = 0, Bytes bytes = 0) {
    Entry entry{kind};
    entry.storage = storage;
    entry.bytes = bytes;
    return apply(entry);
  }

  void run_operator() {
    coop::OperatorEntry op;
    op.cost = input_.below(1000);
    op.side = input_.flag() ? coop::Side::kLeft : coop::Side::kRight;
    op.replayable = input_.below(10) != 0;
    op.backward = static_cast<int>(op.cost) % 2 == 0;  // not drawn: inputs found before stay valid
    if (!live_.empty()) {
      for (uint32_t i = input_.below(4); i > 0; --i) op.inputs.push_back(any());
      for (uint32_t i = input_.below(3); i > 0; --i) {
        const int64_t written = any();
        auto has = [&](const std::vector<int64_t>& ids) {
          return std::find(ids.begin(), ids.end(), written) != ids.end();
        };
        if (has(op.writes) || has(op.overwrites)) continue;
        if (has(op.inputs) || input_.flag()) {
          op.writes.push_back(written);
          if (!has(op.inputs)) op.inputs.push_back(written);
        } else {
          op.overwrites.push_back(written);
        }
      }
      op.inputs.insert(op.inputs.end(), op.overwrites.begin(), op.overwrites.end());
    }
    op.undefined = static_cast<int>(op.cost) % 5 == 0 && op.writes.empty() && op.overwrites.empty();
    for (uint32_t i = input_.below(4); i > 0; --i) {
      op.outputs.push_back(++num_storages_);
      op.output_bytes.push_back(input_.below(12 * kAlignment));
    }
    if (input_.below(3) == 0) draw_memory(op);
    Entry entry{Kind::kOperator};
    entry.operator_index = static_cast<int32_t>(trace_.operators.size());
    trace_.operators.push_back(op);
    trace_.tells_backward = true;
    if (!apply(entry)) return;
    for (const std::vector<int64_t>* made : {&op.outputs, &op.writes, &op.overwrites}) {
      for (const int64_t id : *made) live_[id].cookie = simulator_.cookie(id);
    }
  }

  // A temporary before the outputs, freed between them or never, and one after them.
  void draw_memory(coop::OperatorEntry& op) {
    using Step = coop::MemoryStep::Kind;
    op.memory.push_back({Step::kTemporary, input_.below(8 * kAlignment)});
    const uint32_t freed_after = input_.below(4);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      op.memory.push_back({Step::kOutput, static_cast<int64_t>(i)});
      if (freed_after == i) op.memory.push_back({Step::kFree, 0});
    }
    op.memory.push_back({Step::kTemporary, input_.below(8 * kAlignment)});
  }

  void step() {
    coop::Core& core = simulator_.core();
    const uint32_t choice = input_.below(24);
    if (choice < 10 || live_.empty()) {
      if (choice < 8 && !live_.empty()) {
        run_operator();
      } else if (apply(Kind::kRoot, ++num_storages_, input_.below(12 * kAlignment))) {
        live_[num_storages_].cookie = simulator_.cookie(num_storages_);
      }
      return;
    }
    switch (choice) {
      case 10:
      case 11:
      case 12: {
        const int64_t id = any();
        EXPECT(apply(Kind::kFree, id));
        live_.erase(id);
        break;
      }
      case 13:
      case 14: {
        const int64_t id = any();
        EXPECT(apply(Kind::kEvict, id));
        const coop::Value& value = *simulator_.storage(id)->value;
        if (live_[id].keeps == 0 && !value.is_root()) EXPECT(!value.is_resident());
        break;
      }
      case 15: {
        const int64_t id = any();
        if (apply(Kind::kMaterialize, id)) EXPECT(simulator_.storage(id)->value->is_resident());
        break;
      }
      case 16: {
        const int64_t id = any();
        int& keeps = live_[id].keeps;
        EXPECT(apply(keeps == 0 ? Kind::kKeep : Kind::kUnkeep, id));
        keeps = keeps == 0 ? 1 : keeps - 1;
        break;
      }
      case 17:
        make_root(Kind::kGradient, any());
        break;
      case 18:
        in_step_ = !in_step_;
        EXPECT(apply(in_step_ ? Kind::kBeginStep : Kind::kEndStep) || copy_failed_);
        break;
      case 19:
        core.evict_all();
        break;
      case 20:
        core.faults.fail_placement(1 + input_.below(6));
        break;
      case 21:
        core.faults.fail_placement(0);
        core.faults.throw_in_copy(0);
        if (const uint32_t nth = input_.below(8); nth < 4) {
          core.faults.fail_copy(nth);
        } else {
          core.faults.throw_in_copy(nth - 3);
        }
        break;
      case 22:
        try {
          core.end_step(/*boundary=*/false);
        } catch (const coop::CopyFailed&) {
        }
        in_step_ = false;
        break;
      default:
        unusual_step();
        break;
    }
  }

  void make_root(Kind kind, int64_t id) {
    EXPECT(apply(kind, id) || copy_failed_);
    // What does not fit stays evicted.
    const coop::Value& value = *simulator_.storage(id)->value;
    EXPECT(value.is_root() ? value.is_resident() || value.is_saved() : !value.is_resident());
  }

  void unusual_step() {
    const int64_t id = any();
    switch (input_.below(5)) {
      case 0:
        simulator_.core().reset_peak();
        break;
      case 1:
        if (apply(Kind::kUnseenWrite, id)) EXPECT(simulator_.storage(id)->value->is_root());
        break;
      case 2:
        if (apply(Kind::kExpose, id)) ++live_[id].keeps;
        break;
      case 3:
        make_root(Kind::kLeaf, id);
        break;
      default:
        EXPECT(apply(Kind::kExternal, ++num_storages_, input_.below(12 * kAlignment)));
        live_[num_storages_].cookie = simulator_.cookie(num_storages_);
        break;
    }
  }

  void check() {
    coop::Core& core = simulator_.core();
    EXPECT(core.is_valid());
    const coop::Stats stats = core.stats();
    EXPECT(stats.held <= stats.peak && stats.peak <= stats.budget);
    EXPECT(stats.free == stats.budget - stats.held);
    EXPECT(stats.host_held <= stats.host_peak && stats.host_held <= stats.host_bytes);
    for (const auto& [id, live] : live_) {
      const coop::Value& value = *simulator_.storage(id)->value;
      EXPECT(value.is_resident() || value.is_saved() || !value.is_root());
      if (value.is_ready()) EXPECT(simulator_.cookie(id) == live.cookie);
    }
  }

  // As the engine does it: every tensor is given back, with room for one more budget.
  void leave() {
    coop::Core& core = simulator_.core();
    core.faults.fail_placement(0);
    core.faults.throw_in_copy(0);
    core.grow(core.stats().budget);
    for (const auto& [id, live] : live_) {
      if (!apply(Kind::kMaterialize, id)) continue;
      EXPECT(simulator_.cookie(id) == live.cookie);
    }
    EXPECT(core.is_valid());
  }

  Input& input_;
  coop::Trace trace_;  // outlives the simulator, whose recipes point at its operators
  coop::Simulator simulator_;
  std::map<int64_t, Live> live_;
  int64_t num_storages_ = 0;
  bool in_step_ = false;
  bool copy_failed_ = false;  // on the way back, in the last entry
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  Program(input).run();
  return 0;
}
