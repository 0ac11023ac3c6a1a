#include "core/simulate/simulator.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "core/simulate/recipes.h"

namespace coop {

namespace {

Cost longest_step(const Trace& trace) {
  Cost longest = 0;
  Cost step = 0;
  for (const Entry& entry : trace.entries) {
    if (entry.kind == EntryKind::kEndStep) step = 0;
    if (entry.kind != EntryKind::kOperator) continue;
    step += trace.operators[entry.operator_index].cost;
    longest = std::max(longest, step);
  }
  return longest;
}

// The first that ends behind the offset.
template <typename Blocks>
auto first_behind(Blocks& blocks, Bytes offset) {
  auto next = blocks.lower_bound(offset);
  if (next != blocks.begin() && std::prev(next)->first + std::prev(next)->second > offset) --next;
  return next;
}

bool overlaps(const std::map<Bytes, Bytes>& blocks, Bytes offset, Bytes bytes) {
  if (blocks.empty()) return false;
  const auto next = first_behind(blocks, offset);
  return next != blocks.end() && next->first < offset + bytes;
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

int64_t Simulator::place_of(const Value& value) {
  return value.external != nullptr ? -reinterpret_cast<int64_t>(value.external) : value.offset;
}

uint64_t Simulator::cookie_of(const Value& value) const {
  if (value.external == nullptr && overlaps(arriving_, value.offset, value.bytes)) {
    throw std::logic_error("a block is read that a copy still writes");
  }
  const auto found = cookies_.find(place_of(value));
  return found == cookies_.end() ? 0 : found->second;
}

void Simulator::set_cookie(const Value& value, uint64_t cookie) {
  if (value.external == nullptr && (overlaps(leaving_, value.offset, value.bytes) ||
                                    overlaps(arriving_, value.offset, value.bytes))) {
    throw std::logic_error("a block is written that a copy still uses");
  }
  cookies_[place_of(value)] = cookie;
}

uint64_t Simulator::cookie(int64_t id) const {
  const Value* value = storage(id)->value;
  if (!value->is_resident()) throw std::out_of_range("storage is evicted");
  return cookie_of(*value);
}

void Simulator::run_memory(const OperatorEntry& op, Storage** outputs, bool replaying) {
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
  core_.let_leave_by_copy(storage);
  set_cookie(*storage->value, mix(1, ++num_executed_));
}

void Simulator::begin(const OperatorEntry& op, const std::vector<Storage*>& inputs) {
  operation_.writes.clear();
  operation_.quiet = core_.is_quiet() && op.replayable;
  operation_.undefined = op.undefined;
  auto add_writes = [&](const std::vector<int64_t>& ids, bool keep_old, bool overwrites) {
    for (const int64_t id : ids) {
      Write& write = operation_.writes.emplace_back();
      write.storage = storage(id);
      write.keep_old = keep_old && !operation_.quiet;
      write.overwrites = overwrites;
    }
  };
  add_writes(op.writes, op.keep_old, /*overwrites=*/false);
  add_writes(op.overwrites, /*keep_old=*/false, /*overwrites=*/true);
  for (const int32_t index : op.make_roots) operation_.writes[index].make_root = true;
  core_.begin(operation_, inputs.data(), inputs.size());
}

std::vector<Storage*> Simulator::run_until_it_fits(const OperatorEntry& op,
                                                   const std::vector<Storage*>& inputs) {
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
        return fresh;
      } catch (...) {
        core_.abort(operation_);
        throw;
      }
    } catch (const OutOfBudget& error) {
      if (!repeatable ||
          !core_.make_room(inputs.data(), inputs.size(), error.shortage.wanted, &attempt)) {
        throw;
      }
    }
  }
}

void Simulator::run_operator(const Trace& trace, int32_t index) {
  const OperatorEntry& op = trace.operators[index];
  std::vector<Storage*> inputs;
  for (const int64_t id : op.inputs) inputs.push_back(storage(id));
  core_.set_origin({op.op, 0});
  moves_gradients_ = op.backward;
  auto recipe = std::make_unique<SimulatedRecipe>(op, index, ++num_executed_);
  recipe->in_backward = trace.tells_backward && op.backward;
  const std::vector<Storage*> fresh = run_until_it_fits(op, inputs);
  // What the operator read, and so what its recipe reads.
  std::unordered_map<const Storage*, size_t> written;
  for (size_t w = 0; w < operation_.writes.size(); ++w) {
    written.emplace(operation_.writes[w].storage, w);
  }
  std::vector<Value*> values;
  recipe->written.assign(op.writes.size(), -1);
  uint64_t hash = mix(0, recipe->number);
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
      recipe->written[write->second] = static_cast<int32_t>(values.size());
    }
    hash = mix(hash, cookie_of(*value));
    values.push_back(value);
  }
  size_t output = 0;
  auto set_content = [&](const Storage* storage) {
    recipe->expected.push_back(mix(hash, ++output));
    set_cookie(*storage->value, recipe->expected.back());
    if (storage->value->external != nullptr) return;
    written_[storage->value->offset] = core_.journal().clock + op.cost;
  };
  for (size_t i = 0; i < fresh.size(); ++i) {
    set_content(fresh[i]);
    fresh[i]->handle = fresh[i];
    storages_[op.outputs[i]] = fresh[i];
  }
  for (const Write& write : operation_.writes) {
    set_content(write.storage);
    recipe->roots.push_back(write.kind == Write::Kind::kRoot);
    recipe->written_bytes.push_back(write.storage->bytes);
  }
  const bool has_recipe = op.replayable && !operation_.quiet && !op.undefined;
  core_.commit(operation_, has_recipe ? recipe.release() : nullptr, values.data(), values.size(),
               fresh.data(), fresh.size(), op.cost);
}

void Simulator::count_replay(int32_t index, Cost cost) {
  if (num_replays_.size() <= static_cast<size_t>(index)) num_replays_.resize(index + 1);
  ++num_replays_[index];
  replay_cost_ += cost;
}

bool Simulator::bring_back(Storage* storage) {
  try {
    core_.materialize(storage);
    return true;
  } catch (const OutOfBudget&) {
    return false;
  }
}

void Simulator::free_after(int64_t id, std::unique_ptr<Fence> fence) {
  Storage* dead = storage(id);
  storages_.erase(id);
  core_.storage_died(dead, std::move(fence));
}

void Simulator::copy(Value& to, const Value& from, Bytes) {
  set_cookie(to, cookie_of(from));
  written_.erase(to.offset);
}

void Simulator::move(Value& value, Bytes from) {
  end_copies(value.offset, value.bytes);
  set_cookie(value, cookies_.at(from));
  written_.erase(value.offset);
}

void Simulator::end_copies(Bytes offset, Bytes bytes) {
  for (Blocks* blocks : {&leaving_, &arriving_}) {
    auto next = first_behind(*blocks, offset);
    while (next != blocks->end() && next->first < offset + bytes) next = blocks->erase(next);
  }
}

SavedBytes* Simulator::new_saved_bytes(const Value& value) {
  auto* saved = new SavedCookie();
  saved->cost = static_cast<Cost>(value.bytes);
  return saved;
}

bool Simulator::copy_out(const Value& value, const HostExtents& to, double last_use) {
  const auto written = written_.find(value.offset);
  if (written != written_.end() && written->second > last_use) {
    throw std::logic_error("a copy begins before the operator that writes the bytes");
  }
  for (const HostExtent& extent : to) host_cookies_[extent.offset] = cookie_of(value);
  core_.faults.strike_copy();
  leaving_[value.offset] = value.bytes;
  return true;
}

Storage* Simulator::copy_in(const Value& value, const HostExtents& from, bool later) {
  check_patience();
  Storage* made = core_.allocate(value.bytes, Side::kLeft);
  try {
    core_.faults.strike_copy();
  } catch (...) {
    core_.storage_died(made);
    throw;
  }
  for (const HostExtent& extent : from) {
    if (host_cookies_.at(extent.offset) != host_cookies_.at(from.front().offset)) {
      throw std::logic_error("a copy is of several values");
    }
  }
  set_cookie(*made->value, host_cookies_.at(from.front().offset));
  if (later) arriving_[made->value->offset] = value.bytes;
  return made;
}

void Simulator::apply(const Trace& trace, const Entry& entry) {
  // Operators say so themselves.
  moves_gradients_ = entry.kind == EntryKind::kGradient || entry.kind == EntryKind::kLeaf ||
                     entry.kind == EntryKind::kEndStepInside;
  switch (entry.kind) {
    case EntryKind::kOperator:
      run_operator(trace, entry.operator_index);
      break;
    case EntryKind::kRoot:
      add_root(entry.storage, core_.allocate(entry.bytes, Side::kLeft));
      break;
    case EntryKind::kExternal:
      // Any number that no other has will do for an address.
      add_root(entry.storage,
               core_.add_external(reinterpret_cast<void*>(entry.storage + 1), entry.bytes));
      break;
    case EntryKind::kFree: {
      Storage* dead = storage(entry.storage);
      storages_.erase(entry.storage);
      core_.storage_died(dead);
      break;
    }
    case EntryKind::kKeep:
      core_.keep(storage(entry.storage), "the trace");
      break;
    case EntryKind::kUnkeep:
      core_.unkeep(storage(entry.storage));
      break;
    case EntryKind::kEvict:
      core_.evict(storage(entry.storage));
      break;
    case EntryKind::kMaterialize:
      core_.materialize(storage(entry.storage));
      break;
    case EntryKind::kBeginStep:
      core_.begin_step();
      break;
    case EntryKind::kEndStep:
      core_.end_step(/*boundary=*/true);
      break;
    case EntryKind::kEndStepInside:
      core_.end_step(/*boundary=*/false);
      break;
    // As in the engine: what does not fit stays recomputable.
    case EntryKind::kGradient: {
      Storage* gradient = storage(entry.storage);
      if (!gradient->value->is_lasting_root() && bring_back(gradient))
        core_.make_gradient(gradient);
      break;
    }
    case EntryKind::kLeaf: {
      Storage* leaf = storage(entry.storage);
      if (!leaf->value->is_lasting_root() && bring_back(leaf)) core_.make_root(leaf);
      break;
    }
    case EntryKind::kUndefine:
      core_.writes().undefine(storage(entry.storage));
      break;
    case EntryKind::kGiveBack:
      core_.writes().before_give_back(storage(entry.storage));
      break;
    case EntryKind::kUnseenWrite:
      core_.materialize(storage(entry.storage));
      core_.writes().before_unseen_write(storage(entry.storage));
      break;
    case EntryKind::kExpose:
      core_.materialize(storage(entry.storage));
      core_.expose(storage(entry.storage));
      core_.keep(storage(entry.storage), "the trace");
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
      if (trace.entries[i].kind == EntryKind::kEndStep) {
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
