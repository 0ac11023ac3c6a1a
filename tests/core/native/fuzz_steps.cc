// Steps that repeat, with copies in main memory, so that schedules with both ways back are made and
// followed; and steps that differ a little, or in which something fails. The simulator refuses to
// read or write what a copy uses, and a replay that reads other content; no content is lost.
#include <algorithm>
#include <map>
#include <vector>

#include "core/simulate/simulator.h"
#include "input.h"

namespace {

using coop::Bytes;
using coop::Entry;
using Kind = coop::EntryKind;

constexpr Bytes kAlignment = 64;
constexpr int kNumSteps = 10;

coop::Config draw_config(Input& input) {
  coop::Config config;
  config.alignment = kAlignment;
  config.small_bytes = 0;
  config.budget = kAlignment * (12 + input.below(52));
  constexpr Bytes kHost[] = {0, 16, 64, 1024};
  config.host_bytes = kAlignment * kHost[input.below(4)];
  constexpr double kSpeed[] = {0.1, 1, 4, 25};
  config.link = {kSpeed[input.below(4)], kSpeed[input.below(4)], 10.0 * input.below(4)};
  return config;
}

// One instruction of a step. What it names are places in the list of what is there: first what
// stays, then what the step has made, in order.
struct Instruction {
  enum class What : uint8_t { kOperator, kFree, kGradient, kWork } what;
  std::vector<size_t> reads;
  std::vector<size_t> writes;
  std::vector<Bytes> makes;
  coop::Cost cost = 0;
  bool backward = false;
  bool updates = false;  // what it writes stays
};

class Program {
 public:
  explicit Program(Input& input) : input_(input), simulator_(draw_config(input)) {
    const uint32_t num_roots = input_.below(4);
    for (uint32_t i = 0; i < num_roots; ++i) {
      if (!apply(Kind::kRoot, ++num_storages_, kAlignment * (1 + input_.below(4)))) break;
      there_.push_back(num_storages_);
      cookies_[num_storages_] = simulator_.cookie(num_storages_);
    }
    num_lasting_ = there_.size();
    draw_step();
  }

  void run() {
    for (int step = 0; step < kNumSteps; ++step) {
      // The first ones repeat, so that there is a schedule.
      const bool differs = step > 3 && input_.below(2) == 0;
      const size_t place = differs ? input_.below(static_cast<uint32_t>(step_.size())) : 0;
      bool fits = true;
      for (size_t i = 0; fits && i < step_.size(); ++i) {
        if (differs && i == place) fits = differ();
        fits = fits && run_instruction(step_[i]);
        check();
      }
      end_step();
    }
    leave();
  }

 private:
  bool apply(const Entry& entry) {
    trace_.entries.push_back(entry);
    try {
      simulator_.apply(trace_, entry);
      return true;
    } catch (const coop::OutOfBudget&) {
      return false;
    }
  }
  bool apply(Kind kind, int64_t storage = 0, Bytes bytes = 0) {
    Entry entry{kind};
    entry.storage = storage;
    entry.bytes = bytes;
    return apply(entry);
  }

  // Forwards, then backwards over what is left.
  void draw_step() {
    size_t num_there = num_lasting_;
    std::vector<size_t> alive;
    auto add = [&](Instruction instruction) {
      for (size_t i = 0; i < instruction.makes.size(); ++i) alive.push_back(num_there++);
      step_.push_back(std::move(instruction));
    };
    auto any = [&] { return alive[input_.below(static_cast<uint32_t>(alive.size()))]; };
    auto draw_cost = [&] {
      return static_cast<coop::Cost>(1 + input_.below(8) * input_.below(256));
    };
    const uint32_t length = 4 + input_.below(24);
    for (uint32_t i = 0; i < length; ++i) {
      Instruction next{Instruction::What::kOperator, {}, {}, {}, draw_cost()};
      for (uint32_t n = input_.below(3); n > 0 && !alive.empty(); --n) next.reads.push_back(any());
      if (num_lasting_ > 0 && input_.below(2) == 0) {
        next.reads.push_back(input_.below(static_cast<uint32_t>(num_lasting_)));
      }
      const uint32_t kind = input_.below(8);
      if (kind == 0 && !alive.empty()) {
        next.writes.push_back(any());
      } else if (kind == 1 && !alive.empty()) {
        next.what = Instruction::What::kFree;
        const size_t index = input_.below(static_cast<uint32_t>(alive.size()));
        next.reads = {alive[index]};
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(index));
      } else if (kind != 2) {
        next.makes.assign(1 + (kind == 3), kAlignment * (1 + input_.below(8)));
      }
      add(std::move(next));
    }
    while (!alive.empty()) {
      Instruction next{Instruction::What::kOperator, {alive.back()}, {}, {}, draw_cost(), true};
      const size_t dead = alive.back();
      alive.pop_back();
      if (input_.below(4) == 0 && num_lasting_ > 0) {
        next.writes.push_back(input_.below(static_cast<uint32_t>(num_lasting_)));
        next.updates = true;
      }
      add(std::move(next));
      add({Instruction::What::kFree, {dead}, {}, {}, 0});
    }
  }

  // A storage that is there no more is passed over: the step differs then.
  bool run_instruction(const Instruction& instruction) {
    auto id_of = [&](size_t place) { return place < there_.size() ? there_[place] : 0; };
    if (instruction.what == Instruction::What::kFree) {
      const int64_t id = id_of(instruction.reads.front());
      if (id != 0) free(instruction.reads.front());
      return true;
    }
    coop::OperatorEntry op;
    op.cost = instruction.cost;
    op.backward = instruction.backward;
    auto add_to = [&](std::vector<int64_t>& ids, int64_t id) {
      if (id != 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    };
    for (const size_t place : instruction.reads) add_to(op.inputs, id_of(place));
    for (const size_t place : instruction.writes) {
      add_to(op.inputs, id_of(place));
      add_to(op.writes, id_of(place));
    }
    if (instruction.updates && !op.writes.empty()) op.make_roots = {0};
    for (const Bytes bytes : instruction.makes) {
      op.outputs.push_back(++num_storages_);
      op.output_bytes.push_back(bytes);
    }
    op.keep_old = op.usually_keeps_old();
    Entry entry{Kind::kOperator};
    entry.operator_index = static_cast<int32_t>(trace_.operators.size());
    trace_.operators.push_back(op);
    trace_.tells_backward = true;
    if (!apply(entry)) return false;
    for (const int64_t id : op.outputs) there_.push_back(id);
    for (const std::vector<int64_t>* made : {&op.outputs, &op.writes}) {
      for (const int64_t id : *made) {
        cookies_.erase(id);  // a schedule may have let go of it at once
        if (simulator_.storage(id)->value->is_ready()) cookies_[id] = simulator_.cookie(id);
      }
    }
    return true;
  }

  void free(size_t place) {
    const int64_t id = there_[place];
    EXPECT(apply(Kind::kFree, id));
    cookies_.erase(id);
    there_[place] = 0;
  }

  // False: the step ends here.
  bool differ() {
    coop::Core& core = simulator_.core();
    std::vector<size_t> places;
    for (size_t i = 0; i < there_.size(); ++i) {
      if (there_[i] != 0) places.push_back(i);
    }
    const size_t place =
        places.empty() ? 0 : places[input_.below(static_cast<uint32_t>(places.size()))];
    switch (input_.below(10)) {
      case 0:
        return false;
      case 1:
        if (place >= num_lasting_ && !places.empty()) free(place);
        return true;
      case 2:
        if (!places.empty()) apply(Kind::kMaterialize, there_[place]);
        return true;
      case 3:
        if (!places.empty()) apply(Kind::kEvict, there_[place]);
        return true;
      case 4:
        if (!places.empty()) apply(Kind::kGradient, there_[place]);
        return true;
      case 5:
        core.faults.fail_placement(1 + input_.below(8));
        return true;
      case 6:
        core.faults.fail_copy(1 + input_.below(6));
        return true;
      case 7:
        core.evict_all();
        return true;
      case 8:
        if (!places.empty()) apply(Kind::kUnseenWrite, there_[place]);
        if (!places.empty()) apply(Kind::kExpose, there_[place]);
        return true;
      default: {
        Instruction next{Instruction::What::kOperator, {}, {}, {kAlignment * 4}, 100};
        if (!places.empty()) next.writes = {place};
        return run_instruction(next);
      }
    }
  }

  void end_step() {
    simulator_.core().faults.fail_placement(0);
    simulator_.core().faults.fail_copy(0);
    for (size_t i = num_lasting_; i < there_.size(); ++i) {
      if (there_[i] != 0) free(i);
    }
    there_.resize(num_lasting_);
    EXPECT(apply(Kind::kBeginStep));
    EXPECT(apply(Kind::kEndStep));
    check();
  }

  void check() {
    coop::Core& core = simulator_.core();
    EXPECT(core.is_valid());
    const coop::Stats stats = core.stats();
    EXPECT(stats.held <= stats.peak && stats.peak <= stats.budget);
    EXPECT(stats.host_held <= stats.host_peak && stats.host_held <= stats.host_bytes);
    for (const auto& [id, cookie] : cookies_) {
      const coop::Value& value = *simulator_.storage(id)->value;
      EXPECT(value.is_resident() || value.is_saved() || !value.is_root());
      if (value.is_ready()) EXPECT(simulator_.cookie(id) == cookie);
    }
  }

  // As the engine does it: every tensor is given back, with room for one more budget.
  void leave() {
    coop::Core& core = simulator_.core();
    core.grow(2 * core.stats().budget);
    for (const coop::Storage* storage : core.evicted_storages()) {
      EXPECT(!storage->value->is_ready());
    }
    for (const auto& [id, cookie] : cookies_) {
      if (apply(Kind::kMaterialize, id)) EXPECT(simulator_.cookie(id) == cookie);
    }
    EXPECT(core.is_valid());
  }

  Input& input_;
  coop::Trace trace_;  // outlives the simulator, whose recipes point at its operators
  coop::Simulator simulator_;
  std::vector<Instruction> step_;
  std::vector<int64_t> there_;  // 0: gone
  std::map<int64_t, uint64_t> cookies_;
  size_t num_lasting_ = 0;
  int64_t num_storages_ = 0;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  Program(input).run();
  return 0;
}
