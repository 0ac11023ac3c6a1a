#include "core/simulator.h"

#include <algorithm>
#include <stdexcept>

#include "core/check.h"

namespace coop {

namespace {

struct SimulatedRecord final : Record {
  const TraceOperator* op = nullptr;  // null: saved bytes, of which `expected` has the cookie
  int32_t index = 0;                  // of the operator in its trace
  uint64_t number = 0;                // of the execution
  std::vector<int32_t> written;       // for each write: its old value among the inputs, or -1
  std::vector<bool> roots;            // for each write and overwrite: it stays a root
  std::vector<Bytes> written_bytes;
  std::vector<uint64_t> expected;  // cookies of the outputs
};

// Thrown by a replay; ends the simulation.
struct GaveUp {};

Cost longest_step(const Trace& trace) {
  Cost longest = 0;
  Cost step = 0;
  for (const TraceEntry& entry : trace.entries) {
    if (entry.kind == TraceEntry::Kind::kEndStep) step = 0;
    if (entry.kind != TraceEntry::Kind::kOperator) continue;
    step += trace.operators[entry.operator_index].cost;
    longest = std::max(longest, step);
  }
  return longest;
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

// Something runs that can be tried again, or cannot.
class Running {
 public:
  Running(bool* repeatable, bool is_repeatable)
      : repeatable_(repeatable), previous_(std::exchange(*repeatable, is_repeatable)) {}
  ~Running() { *repeatable_ = previous_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  bool* const repeatable_;
  const bool previous_;
};

}  // namespace

Simulator::Simulator(const Config& config) : core_(config, this) {}

Simulator::~Simulator() {
  for (auto& [id, storage] : storages_) core_.storage_died(storage);
}

Storage* Simulator::storage(int64_t id) const {
  const auto found = storages_.find(id);
  if (found == storages_.end()) {
    throw std::out_of_range("storage " + std::to_string(id) + " is not alive");
  }
  return found->second;
}

uint64_t& Simulator::cookie_of(const Value& value) {
  return cookies_[value.external != nullptr ? -reinterpret_cast<int64_t>(value.external)
                                            : value.offset];
}

uint64_t Simulator::cookie(int64_t id) const {
  const Value* value = storage(id)->value;
  if (!value->is_resident()) throw std::out_of_range("storage is evicted");
  return const_cast<Simulator*>(this)->cookie_of(*value);
}

void Simulator::run_memory(const TraceOperator& op, Storage** outputs, bool replaying) {
  std::vector<Storage*> temporaries;
  auto clean_up = [&] {
    for (Storage*& temporary : temporaries) {
      if (temporary != nullptr) core_.storage_died(std::exchange(temporary, nullptr));
    }
  };
  try {
    if (op.memory.empty()) {
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        outputs[i] = core_.allocate(op.output_bytes[i], op.side);
      }
    }
    for (const MemoryStep& step : op.memory) {
      switch (step.kind) {
        case MemoryStep::Kind::kOutput:
          outputs[step.argument] = core_.allocate(op.output_bytes[step.argument], op.side);
          break;
        case MemoryStep::Kind::kTemporary:
          temporaries.push_back(core_.allocate(step.argument, op.side));
          break;
        case MemoryStep::Kind::kFree:
          core_.storage_died(std::exchange(temporaries[step.argument], nullptr));
          break;
        case MemoryStep::Kind::kRoot:
          if (!replaying) {
            const auto& [id, bytes] = op.roots[step.argument];
            add_root(id, core_.allocate(bytes, op.side));
          }
          break;
      }
    }
  } catch (...) {
    clean_up();
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      if (outputs[i] != nullptr) core_.storage_died(std::exchange(outputs[i], nullptr));
    }
    throw;
  }
  clean_up();
}

void Simulator::add_root(int64_t id, Storage* storage) {
  storage->handle = storage;
  storages_[id] = storage;
  cookie_of(*storage->value) = mix(1, ++num_executed_);
}

void Simulator::begin(const TraceOperator& op, const std::vector<Storage*>& inputs) {
  operation_.writes.clear();
  operation_.quiet = core_.is_quiet() && op.replayable;
  auto add_writes = [&](const std::vector<int64_t>& ids, bool keep_old) {
    for (const int64_t id : ids) {
      Write& write = operation_.writes.emplace_back();
      write.storage = storage(id);
      write.keep_old = keep_old && !operation_.quiet;
    }
  };
  add_writes(op.writes, op.keep_old);
  add_writes(op.overwrites, false);
  for (const int32_t index : op.make_roots) operation_.writes[index].make_root = true;
  core_.begin(operation_, inputs.data(), inputs.size());
}

void Simulator::run_operator(const Trace& trace, int32_t index) {
  const TraceOperator& op = trace.operators[index];
  std::vector<Storage*> inputs;
  for (const int64_t id : op.inputs) inputs.push_back(storage(id));
  core_.set_origin({op.op, 0});
  moves_gradients_ = op.backward;
  auto record = std::make_unique<SimulatedRecord>();
  record->op = &op;
  record->index = index;
  record->number = ++num_executed_;
  record->late = trace.tells_backward && op.backward;
  std::vector<Storage*> fresh(op.outputs.size(), nullptr);
  for (int attempt = 0;;) {
    bool repeatable = true;
    try {
      begin(op, inputs);
      // A root that is half written cannot be brought back.
      repeatable = op.replayable;
      for (const Write& write : operation_.writes) repeatable &= write.kind != Write::Kind::kRoot;
      try {
        const Running running(&repeatable_, repeatable);
        run_memory(op, fresh.data(), /*replaying=*/false);
      } catch (...) {
        core_.abort(operation_);
        throw;
      }
      break;
    } catch (const OutOfBudget& error) {
      if (!repeatable ||
          !core_.make_room(inputs.data(), inputs.size(), error.shortage.wanted, &attempt)) {
        throw;
      }
    }
  }
  // What the operator read, and so what its record reads.
  std::unordered_map<const Storage*, size_t> written;
  for (size_t w = 0; w < operation_.writes.size(); ++w) {
    written.emplace(operation_.writes[w].storage, w);
  }
  std::vector<Value*> values;
  record->written.assign(op.writes.size(), -1);
  uint64_t hash = mix(0, record->number);
  for (Storage* input : inputs) {
    Value* value = input->value;
    const auto write = written.find(input);
    if (write != written.end()) {
      // A root that is written has no old value to read again, unless it was kept; what is
      // overwritten is not read at all.
      value = operation_.writes[write->second].old;
      if (write->second >= op.writes.size()) continue;
      if (value == nullptr) {
        // Never read again; but unless it is scratch to a replay (statistics), it was read now.
        if (op.outputs.empty() || !op.replayable || operation_.quiet)
          hash = mix(hash, cookie_of(*input->value));
        continue;
      }
      record->written[write->second] = static_cast<int32_t>(values.size());
    }
    hash = mix(hash, cookie_of(*value));
    values.push_back(value);
  }
  for (const Write& write : operation_.writes) {
    const bool root = write.kind == Write::Kind::kRoot;
    record->roots.push_back(root);
    record->written_bytes.push_back(write.storage->bytes);
  }
  size_t output = 0;
  for (Storage* storage : fresh) {
    record->expected.push_back(mix(hash, ++output));
    cookie_of(*storage->value) = record->expected.back();
  }
  for (const Write& write : operation_.writes) {
    record->expected.push_back(mix(hash, ++output));
    cookie_of(*write.storage->value) = record->expected.back();
  }
  for (size_t i = 0; i < fresh.size(); ++i) {
    fresh[i]->handle = fresh[i];
    storages_[op.outputs[i]] = fresh[i];
  }
  const bool recorded = op.replayable && !operation_.quiet;
  core_.commit(operation_, recorded ? record.release() : nullptr, values.data(), values.size(),
               fresh.data(), fresh.size(), op.cost);
}

void Simulator::replay(Record& base, Storage** outputs) {
  if (replay_cost_ > most_replay_cost_) throw GaveUp();
  auto& record = static_cast<SimulatedRecord&>(base);
  if (record.op == nullptr) {
    outputs[0] = core_.allocate(record.outputs[0]->bytes, Side::kLeft);
    cookie_of(*outputs[0]->value) = record.expected.at(0);
    return;
  }
  const TraceOperator& op = *record.op;
  const Running running(&repeatable_, true);
  uint64_t hash = mix(0, record.number);
  for (const Edge& edge : record.inputs) hash = mix(hash, cookie_of(*edge.value));
  const size_t num_fresh = op.outputs.size();
  std::vector<Storage*> scratch;  // in place of roots that the operator writes again
  try {
    for (size_t w = 0; w < record.roots.size(); ++w) {
      const int32_t index = w < record.written.size() ? record.written[w] : -1;
      Storage* memory = index >= 0 ? core_.take_for_write(record.inputs[index].value, record)
                                   : core_.allocate(record.written_bytes[w], op.side);
      (record.roots[w] ? scratch.emplace_back() : outputs[num_fresh + w]) = memory;
    }
    run_memory(op, outputs, /*replaying=*/true);
  } catch (...) {
    for (size_t i = num_fresh; i < record.outputs.size(); ++i) {
      if (outputs[i] != nullptr) core_.storage_died(std::exchange(outputs[i], nullptr));
    }
    for (Storage* storage : scratch) core_.storage_died(storage);
    throw;
  }
  for (Storage* storage : scratch) core_.storage_died(storage);
  for (size_t i = 0; i < record.outputs.size(); ++i) {
    const uint64_t cookie = mix(hash, i + 1);
    if (cookie != record.expected[i]) throw std::logic_error("a replay read other content");
    if (outputs[i] != nullptr) cookie_of(*outputs[i]->value) = cookie;
  }
  if (num_replays_.size() <= static_cast<size_t>(record.index)) {
    num_replays_.resize(record.index + 1);
  }
  ++num_replays_[record.index];
  replay_cost_ += op.cost;
}

void Simulator::copy(Value& to, const Value& from, Bytes) { cookie_of(to) = cookie_of(from); }

void Simulator::move(Value& value, Bytes from) { cookie_of(value) = cookies_.at(from); }

void Simulator::retire(Record* record) { delete record; }

Record* Simulator::new_saving_record(const Value& value) {
  auto* record = new SimulatedRecord();
  record->cost = static_cast<Cost>(value.bytes);
  return record;
}

void Simulator::save(Record& base, const Value& value) {
  static_cast<SimulatedRecord&>(base).expected = {cookie_of(value)};
}

void Simulator::apply(const Trace& trace, const TraceEntry& entry) {
  // Operators say so themselves.
  moves_gradients_ = entry.kind == TraceEntry::Kind::kMakeRoot ||
                     entry.kind == TraceEntry::Kind::kLeaf ||
                     entry.kind == TraceEntry::Kind::kEndStepInside;
  switch (entry.kind) {
    case TraceEntry::Kind::kOperator:
      run_operator(trace, entry.operator_index);
      break;
    case TraceEntry::Kind::kRoot:
      add_root(entry.storage, core_.allocate(entry.bytes, Side::kLeft));
      break;
    case TraceEntry::Kind::kExternal:
      // Any number that no other has will do for an address.
      add_root(entry.storage,
               core_.add_external(reinterpret_cast<void*>(entry.storage + 1), entry.bytes));
      break;
    case TraceEntry::Kind::kFree: {
      Storage* dead = storage(entry.storage);
      storages_.erase(entry.storage);
      core_.storage_died(dead);
      break;
    }
    case TraceEntry::Kind::kPin:
      core_.pin(storage(entry.storage), "the trace");
      break;
    case TraceEntry::Kind::kUnpin:
      core_.unpin(storage(entry.storage));
      break;
    case TraceEntry::Kind::kEvict:
      core_.evict(storage(entry.storage));
      break;
    case TraceEntry::Kind::kMaterialize:
      core_.materialize(storage(entry.storage));
      break;
    case TraceEntry::Kind::kBeginStep:
      core_.begin_step();
      break;
    case TraceEntry::Kind::kEndStep:
      core_.end_step(/*boundary=*/true);
      break;
    case TraceEntry::Kind::kEndStepInside:
      core_.end_step(/*boundary=*/false);
      break;
    case TraceEntry::Kind::kMakeRoot: {
      Storage* gradient = storage(entry.storage);
      if (gradient->value->stays()) break;
      try {
        core_.materialize(gradient);
      } catch (const OutOfBudget&) {
        break;  // as in the engine: it stays recomputable
      }
      core_.make_gradient(gradient);
      break;
    }
    case TraceEntry::Kind::kLeaf: {
      Storage* leaf = storage(entry.storage);
      if (leaf->value->stays()) break;
      try {
        core_.materialize(leaf);
      } catch (const OutOfBudget&) {
        break;
      }
      core_.make_root(leaf);
      break;
    }
    case TraceEntry::Kind::kUnseenWrite:
      core_.materialize(storage(entry.storage));
      core_.before_unseen_write(storage(entry.storage));
      break;
    case TraceEntry::Kind::kExpose:
      core_.materialize(storage(entry.storage));
      core_.expose(storage(entry.storage));
      core_.pin(storage(entry.storage), "the trace");
      break;
  }
}

SimulationResult Simulator::run(const Trace& trace, double most_replay) {
  SimulationResult result;
  result.fitted = true;
  most_replay_cost_ = most_replay * longest_step(trace);
  for (size_t i = 0; i < trace.entries.size(); ++i) {
    try {
      apply(trace, trace.entries[i]);
      if (trace.entries[i].kind == TraceEntry::Kind::kEndStep) {
        result.steps.push_back(core_.stats());
        replay_cost_ = 0;
      }
    } catch (const OutOfBudget& error) {
      result.fitted = false;
      result.shortage = error.shortage;
      result.failed_entry = static_cast<int64_t>(i);
      break;
    } catch (const GaveUp&) {
      result.fitted = false;
      result.gave_up = true;
      result.failed_entry = static_cast<int64_t>(i);
      break;
    }
  }
  result.stats = core_.stats();
  result.num_replays = num_replays_;
  result.num_replays.resize(trace.operators.size());
  return result;
}

}  // namespace coop
