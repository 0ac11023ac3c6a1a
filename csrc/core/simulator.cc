#include "core/simulator.h"

#include <stdexcept>

#include "core/check.h"

namespace coop {

namespace {

struct SimulatedRecord final : Record {
  const TraceOperator* op = nullptr;
  uint64_t number = 0;             // of the execution
  std::vector<int32_t> written;    // for each write: the index of its value among the inputs
  std::vector<uint64_t> expected;  // cookies of the outputs
};

uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

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

uint64_t Simulator::cookie(int64_t id) const {
  const Value* value = storage(id)->value;
  if (!value->is_resident()) throw std::out_of_range("storage is evicted");
  return cookies_.at(value->offset);
}

void Simulator::run_memory(const TraceOperator& op, Storage** outputs) {
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

void Simulator::begin(const TraceOperator& op, const std::vector<Storage*>& inputs) {
  operation_.writes.clear();
  for (const int64_t id : op.writes) {
    Write write;
    write.storage = storage(id);
    write.keep_old = !op.outputs.empty() && op.replayable;
    operation_.writes.push_back(write);
  }
  for (const int64_t id : op.overwrites) {
    Write write;
    write.storage = storage(id);
    operation_.writes.push_back(write);
  }
  core_.begin(operation_, inputs.data(), inputs.size());
}

void Simulator::run_operator(const TraceOperator& op) {
  std::vector<Storage*> inputs;
  for (const int64_t id : op.inputs) inputs.push_back(storage(id));
  core_.set_origin({op.op, 0});
  auto record = std::make_unique<SimulatedRecord>();
  record->op = &op;
  record->number = ++num_executed_;
  std::vector<Storage*> fresh(op.outputs.size(), nullptr);
  for (int attempt = 1;; ++attempt) {
    bool repeatable = true;
    try {
      begin(op, inputs);
      // A root that is half written cannot be brought back.
      repeatable = op.replayable;
      for (const Write& write : operation_.writes) repeatable &= write.kind != Write::Kind::kRoot;
      try {
        run_memory(op, fresh.data());
      } catch (...) {
        core_.abort(operation_);
        throw;
      }
      break;
    } catch (const OutOfBudget&) {
      if (!repeatable || !core_.make_room(inputs.data(), inputs.size(), attempt)) throw;
    }
  }
  // What the operator read, and so what its record reads.
  std::vector<Value*> values;
  uint64_t hash = mix(0, record->number);
  for (Storage* input : inputs) {
    Value* value = input->value;
    bool blank = false;
    for (size_t w = 0; w < operation_.writes.size(); ++w) {
      if (operation_.writes[w].storage != input) continue;
      value = operation_.writes[w].old;
      blank = w >= op.writes.size();
    }
    // A root that is written has no old value to read again: nothing is recorded for it.
    const Value* content = value != nullptr ? value : input->value;
    if (!blank) hash = mix(hash, cookies_.at(content->offset));
    if (value != nullptr && !blank) values.push_back(value);
  }
  for (const int64_t id : op.writes) {
    int32_t index = -1;
    for (const Write& write : operation_.writes) {
      if (write.storage != storage(id) || write.old == nullptr) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] == write.old) index = static_cast<int32_t>(i);
      }
    }
    record->written.push_back(index);
  }
  size_t output = 0;
  for (Storage* storage : fresh) {
    record->expected.push_back(mix(hash, ++output));
    cookies_[storage->value->offset] = record->expected.back();
  }
  for (const Write& write : operation_.writes) {
    record->expected.push_back(mix(hash, ++output));
    cookies_[write.storage->value->offset] = record->expected.back();
  }
  for (size_t i = 0; i < fresh.size(); ++i) {
    fresh[i]->handle = fresh[i];
    storages_[op.outputs[i]] = fresh[i];
  }
  core_.commit(operation_, op.replayable ? record.release() : nullptr, values.data(), values.size(),
               fresh.data(), fresh.size(), op.cost);
}

void Simulator::replay(Record& base, Storage** outputs) {
  auto& record = static_cast<SimulatedRecord&>(base);
  const TraceOperator& op = *record.op;
  uint64_t hash = mix(0, record.number);
  for (const Edge& edge : record.inputs) hash = mix(hash, cookies_.at(edge.value->offset));
  const size_t num_fresh = op.outputs.size();
  std::vector<Storage*> scratch;  // copies of roots the operator writes again
  size_t next = num_fresh;
  try {
    for (const int32_t index : record.written) {
      if (index >= 0) {
        Value* old = record.inputs[index].value;
        Storage* taken = core_.take_for_write(old, record);
        (old->is_root() ? scratch.emplace_back() : outputs[next]) = taken;
      }
      ++next;
    }
    for (const int64_t id : op.overwrites) {
      (void)id;
      if (record.outputs[next] != nullptr) {
        outputs[next] = core_.allocate(record.outputs[next]->bytes, op.side);
      }
      ++next;
    }
    run_memory(op, outputs);
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
    if (outputs[i] != nullptr) cookies_[outputs[i]->value->offset] = cookie;
  }
}

void Simulator::copy(Value& to, const Value& from, Bytes) {
  cookies_[to.offset] = cookies_.at(from.offset);
}

void Simulator::move(Value& value, Bytes from) { cookies_[value.offset] = cookies_.at(from); }

void Simulator::retire(Record* record) { delete record; }

void Simulator::apply(const Trace& trace, const TraceEntry& entry) {
  switch (entry.kind) {
    case TraceEntry::Kind::kOperator:
      run_operator(trace.operators[entry.operator_index]);
      break;
    case TraceEntry::Kind::kRoot: {
      Storage* root = core_.allocate(entry.bytes, Side::kLeft);
      root->handle = root;
      storages_[entry.storage] = root;
      cookies_[root->value->offset] = mix(1, ++num_executed_);
      break;
    }
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
    case TraceEntry::Kind::kMakeRoot:
      core_.materialize(storage(entry.storage));
      core_.make_gradient(storage(entry.storage));
      break;
  }
}

SimulationResult Simulator::run(const Trace& trace) {
  SimulationResult result;
  result.fitted = true;
  for (size_t i = 0; i < trace.entries.size(); ++i) {
    try {
      apply(trace, trace.entries[i]);
    } catch (const OutOfBudget& error) {
      result.fitted = false;
      result.shortage = error.shortage;
      result.failed_entry = static_cast<int64_t>(i);
      break;
    }
  }
  result.stats = core_.stats();
  return result;
}

}  // namespace coop
