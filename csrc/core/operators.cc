// The way of an operator through the core: begin, commit or abort; writes; steps.
#include <utility>

#include "core/check.h"
#include "core/core.h"

namespace coop {

void Core::begin(Operation& operation, Storage* const* inputs, size_t num_inputs) {
  operation.locked.clear();
  for (Write& write : operation.writes) {
    ++write.storage->writers;
    write.counted = true;
  }
  bool resident = true;
  for (size_t i = 0; i < num_inputs; ++i) {
    operation.locked.push_back(inputs[i]->value);
    resident &= inputs[i]->value->is_resident();
  }
  if (!resident) {
    try {
      make_resident(operation.locked.data(), operation.locked.size());
    } catch (...) {
      operation.locked.clear();
      finish_writes(operation);
      throw;
    }
  }
  for (Value* value : operation.locked) lock(value);
  try {
    prepare_writes(operation);
  } catch (...) {
    abort(operation);
    throw;
  }
}

// Roots first: settling one may make roots of other values that are written, so how those are
// written is known only after the last root.
void Core::prepare_writes(Operation& operation) {
  if (operation.writes.empty()) return;
  bool has_values = false;  // a replay for their sake reads the old bytes of the roots too
  for (Write& write : operation.writes) {
    write.prepared = false;
    write.kind = Write::Kind::kRoot;
    Storage* storage = write.storage;
    if (storage->writers == 1) continue;
    // Another thread's operator writes it as well.
    storage->contended = true;
    if (storage->in_place) split(storage);
  }
  for (Write& write : operation.writes) {
    if (write.make_root) root(write.storage->value);
    has_values |= write.storage->value->is_version();
  }
  for (bool found = true; found;) {
    found = false;
    for (Write& write : operation.writes) {
      if (write.prepared || write.storage->value->is_version()) continue;
      write.keep_old |= has_values;
      prepare_write(operation, write);
      found = write.prepared = true;
    }
  }
  for (Write& write : operation.writes) {
    if (!write.prepared) prepare_write(operation, write);
  }
}

// The operator is done with what it wrote. An operator may replace a storage's memory (resize_, or
// an `out=` of another size): the storage it began with is dead then.
void Core::finish_writes(Operation& operation) {
  for (const Write& write : operation.writes) {
    Storage* storage = write.storage;
    if (!write.counted) continue;
    if (write.kind == Write::Kind::kInPlace) storage->in_place = false;
    if (--storage->writers > 0) continue;
    storage->in_place = storage->contended = false;
    if (storage->dead) storage_died(storage);
  }
  operation.writes.clear();
}

// An operator is writing the storage in place, and somebody else needs its old content, or writes
// it too. The old version lives on without memory, as it would after the operator (Rule 5).
void Core::split(Storage* storage) {
  Value* old = storage->value;
  Value* next = new_value(old->bytes);
  move_block(old, next);
  detach(old);
  attach(next, storage);
  absent(old);
  storage->in_place = false;
}

void Core::settle_writes(Operation& operation) {
  for (Write& write : operation.writes) {
    const Storage* storage = write.storage;
    const bool was_split = write.kind == Write::Kind::kInPlace && storage->value != write.old;
    if (storage->contended || was_split) write.kind = Write::Kind::kRoot;
  }
}

void Core::prepare_write(Operation& operation, Write& write) {
  Storage* storage = write.storage;
  Value* value = storage->value;
  if (!value->is_version()) {
    write.kind = Write::Kind::kRoot;
    write.old = nullptr;
    if (write.keep_old) {
      keep_private_copy(storage);
      write.old = value;
    } else if (value->users != nullptr) {
      settle(storage);
    }
    return;
  }
  write.old = value;
  if (config_.inplace) {
    write.kind = Write::Kind::kInPlace;  // Rule 5; the new version is made in commit()
    storage->in_place = true;
    return;
  }
  // Copy on write: the operator works on a copy, the old version keeps its address until then.
  Value* copy = new_value(value->bytes);
  place(copy, storage->bytes, false, Side::kLeft);
  copy_content(value, copy, storage->bytes);
  write.kind = Write::Kind::kCopied;
  detach(value);
  attach(copy, storage);
  lock(copy);
  operation.locked.push_back(copy);
  host_->restore(*storage);
}

// Rule 6: live records read a root that is about to be written. The cheaper of keeping a copy of
// the old bytes, or making roots of what would be recomputed from them.
void Core::settle(Storage* storage) {
  Value* value = storage->value;
  std::vector<Value*> dependents;
  const bool cheaper = gather_dependents({value}, value->bytes, &dependents);
  if (cheaper && root_dependents(dependents) && value->users == nullptr) return;
  keep_private_copy(storage);
}

// The values of live storages that would be recomputed from the seeds. False when they hold more
// than `limit` bytes.
bool Core::gather_dependents(std::vector<Value*> seeds, Bytes limit,
                             std::vector<Value*>* dependents) {
  const int64_t mark = ++mark_;
  Bytes bytes = 0;
  while (!seeds.empty()) {
    Value* next = seeds.back();
    seeds.pop_back();
    for (Edge* edge = next->users; edge != nullptr; edge = edge->next) {
      for (Value* output : edge->record->outputs) {
        if (output == nullptr || output->mark == mark) continue;
        output->mark = mark;
        if (output->storage == nullptr) {
          seeds.push_back(output);
          continue;
        }
        bytes += output->bytes;
        if (bytes > limit) return false;
        dependents->push_back(output);
      }
    }
  }
  return true;
}

// False when they could not all be made resident at once.
bool Core::root_dependents(const std::vector<Value*>& dependents) {
  try {
    for (Value* value : dependents) {
      if (value->is_root()) continue;
      make_resident(&value, 1);
      root(value);
    }
  } catch (const OutOfBudget&) {
    return false;
  }
  return true;
}

// The storage gets a new root at the old address, the old value (a root or locked, so it stays
// where it is meanwhile) a copy of the bytes.
void Core::keep_private_copy(Storage* storage) {
  Value* old = storage->value;
  Value* copy = new_value(old->bytes);
  place(copy, storage->bytes, storage->bytes <= config_.small_bytes, Side::kLeft);
  copy_content(old, copy, storage->bytes);
  // Swap the two: the live storage stays where it is.
  detach(old);
  attach(copy, storage);
  std::swap(old->offset, copy->offset);
  std::swap(old->arena, copy->arena);
  std::swap(old->external, copy->external);
  std::swap(old->last_access, copy->last_access);
  old->arena->hand_over(old->offset, old);
  emit(EventKind::kHandOver, old);
  needed_.exchanged(old, copy);
  if (copy->arena != nullptr) {
    copy->arena->hand_over(copy->offset, copy);
    emit(EventKind::kHandOver, copy);
  }
}

void Core::commit(Operation& operation, Record* record, Value* const* inputs, size_t num_inputs,
                  Storage* const* fresh, size_t num_fresh, Cost cost) {
  alternating_bytes_ = kNoAlternation;
  settle_writes(operation);
  clock_ += cost;
  ++stats_.num_operators;
  stats_.compute_cost += cost;
  events_.emit(EventKind::kOperator, 0, 0, 0, static_cast<int64_t>(cost), 0, clock_, origin_);

  auto keeps_record = [&](const Value* value) { return value->arena == &arena_; };
  bool keep = false;
  if (record != nullptr) {
    for (size_t i = 0; i < num_fresh; ++i) keep |= keeps_record(fresh[i]->value);
    for (const Write& write : operation.writes) {
      keep |= write.makes_version() && keeps_record(write.storage->value);
    }
    if (keep) {
      record->cost = cost;
      record->outputs.assign(num_fresh + operation.writes.size(), nullptr);
      link_inputs(record, inputs, num_inputs);
    } else {
      host_->retire(record);
    }
  }
  Bytes made = 0;
  auto recorded = [&](Value* value, size_t index) {
    if (keep && keeps_record(value)) {
      set_record(value, record, index);
      made += value->bytes;
      emit(EventKind::kRecord, value, static_cast<int64_t>(cost));
    }
    touch(value);
    if (operation.quiet) leave_unrecorded(value);
    // All that it was made from is resident, so no set is beside it yet.
    if (value->is_evictable()) mark_stale(value, kStaleCost);
  };
  // Small values are roots from the start: they are never evicted.
  for (size_t i = 0; i < num_fresh; ++i) recorded(fresh[i]->value, i);
  for (size_t i = 0; i < operation.writes.size(); ++i) {
    const Write& write = operation.writes[i];
    if (!write.makes_version()) continue;
    if (write.kind == Write::Kind::kInPlace) {
      // Rule 5: the old version lives on without memory.
      Value* next = new_value(write.old->bytes);
      move_block(write.old, next);
      needed_.handed_over(write.old, next);
      detach(write.old);
      attach(next, write.storage);
    }
    recorded(write.storage->value, num_fresh + i);
  }
  if (made > 0 && cost > 0) {
    least_cost_ = std::min(least_cost_, cost);
    const auto bytes = static_cast<double>(made);
    if (cost < least_byte_cost_ * bytes) least_byte_cost_ = cost / bytes;  // hardly ever divides
  }
  // After all outputs have their record: they are neighbours of what is absent now.
  for (const Write& write : operation.writes) {
    if (write.makes_version() && write.kind == Write::Kind::kInPlace) absent(write.old);
  }
  for (Value* value : operation.locked) {
    touch(value);
    unlock(value);
  }
  operation.locked.clear();
  finish_writes(operation);
  COOP_DEBUG_ASSERT(is_valid());
}

void Core::abort(Operation& operation) {
  alternating_bytes_ = kNoAlternation;
  settle_writes(operation);
  for (const Write& write : operation.writes) {
    Storage* storage = write.storage;
    if (write.makes_version() && write.kind == Write::Kind::kCopied) {
      // The copy may be half written; the old version is whole.
      Value* copy = storage->value;
      detach(copy);
      attach(write.old, storage);
      Record* record = write.old->record;
      // Back on the list of recorded values.
      --record->num_live_outputs;
      set_record(write.old, record, write.old->output_index);
      refresh(write.old);
      host_->restore(*storage);
    }
  }
  for (Value* value : operation.locked) unlock(value);
  for (const Write& write : operation.writes) {
    // What may be half written is recomputed from its record.
    Value* value = write.storage->value;
    if (write.makes_version() && write.kind == Write::Kind::kInPlace && value->is_resident() &&
        value->locks == 0) {
      if (write.storage->pins > 0) {
        root(value);  // pinned since it began: its address is somebody's, so it stays as it is
      } else {
        evict_value(value);
      }
    }
  }
  operation.locked.clear();
  finish_writes(operation);
  COOP_DEBUG_ASSERT(is_valid());
}

// Rule 6 for all parameters at once: they are about to be written, and when little is alive besides
// them (a loss, an output that is printed later), making roots of that is cheaper than a copy of
// every parameter it was computed from.
void Core::begin_step() {
  step_begin_serial_ = next_serial_ + 1;
  gathered_ = false;
  const int64_t mark = ++mark_;
  Bytes root_bytes = 0;
  for (const Record* record = first_record_; record != nullptr; record = record->next) {
    for (const Edge& edge : record->inputs) {
      if (!edge.value->is_root() || edge.value->mark == mark) continue;
      edge.value->mark = mark;
      root_bytes += edge.value->bytes;
    }
  }
  std::vector<Value*> dependents;
  Bytes dependent_bytes = 0;
  for (Value* value = first_recorded_; value != nullptr; value = value->next_recorded) {
    dependent_bytes += value->bytes;
    if (dependent_bytes > root_bytes) return;
    dependents.push_back(value);
  }
  root_dependents(dependents);
}

// Rule 11. What the optimizer wrote or made becomes a root; at a boundary, so does what has
// survived a whole step, and what still depends on records older than that is settled: records
// never pile up.
void Core::end_step(bool boundary) {
  const int64_t begin_serial = step_begin_serial_ > 0 ? step_begin_serial_ : next_serial_ + 1;
  step_begin_serial_ = 0;
  std::vector<Value*> survivors;
  std::vector<Value*> served;  // by records that are too old
  for (Value* value = first_recorded_; value != nullptr; value = value->next_recorded) {
    if (value->serial >= begin_serial || (boundary && value->step < step_)) {
      survivors.push_back(value);
    }
  }
  if (boundary) {
    for (const Record* record = first_record_; record != nullptr && record->step + 1 < step_;
         record = record->next) {
      for (Value* output : record->outputs) {
        if (output != nullptr && output->storage == nullptr) served.push_back(output);
      }
    }
    gather_dependents(std::move(served), config_.budget, &survivors);
  }
  // Resident ones first: rooting them may free what the others' replays would need space for.
  for (const bool resident : {true, false}) {
    for (Value* value : survivors) {
      if (!value->is_root() && value->is_resident() == resident) root_dependents({value});
    }
  }
  if (!boundary) return;
  ++step_;
  ++quiet_steps_;
  pace_.step_ended(stats_.compute_cost, stats_.replay_cost);
  events_.emit(EventKind::kStep, step_, 0, 0, 0, 0, clock_, origin_);
  COOP_DEBUG_ASSERT(is_valid());
}

void Core::materialize(Storage* storage) {
  Value* value = storage->value;
  make_resident(&value, 1);
}

bool Core::evict(Storage* storage) {
  Value* value = storage->value;
  if (is_unrecorded(value)) record_saving(value);
  if (!value->is_evictable() || value->locks > 0) return !value->is_resident();
  evict_value(value);
  return true;
}

void Core::evict_all() {
  if (is_quiet()) end_quiet();
  std::vector<Value*> values;
  for_each_block([&](const Block& block) {
    if (!block.is_free() && block.value->is_evictable() && block.value->locks == 0) {
      values.push_back(block.value);
    }
  });
  for (Value* value : values) evict_value(value);
}

void Core::pin(Storage* storage, const char* reason, bool for_good) {
  ++storage->pins;
  storage->pin_reason = reason;
  if (for_good) {
    ++storage->lasting_pins;
    storage->lasting_reason = reason;
  }
  if (events_.enabled) emit(EventKind::kPin, storage->value, events_.reason_index(reason));
  refresh(storage->value);
}

void Core::unpin(Storage* storage) {
  storage->pins = storage->lasting_pins;
  storage->pin_reason = storage->lasting_reason;
  if (storage->pins > 0) return;
  emit(EventKind::kUnpin, storage->value);
  refresh(storage->value);
}

void Core::before_unseen_write(Storage* storage) {
  COOP_ASSERT(storage->value->is_resident());
  root(storage->value);
  if (storage->value->users != nullptr) settle(storage);
}

void Core::expose(Storage* storage) {
  storage->exposed = true;
  before_unseen_write(storage);
}

void Core::make_root(Storage* storage) {
  if (storage->value->is_resident()) root(storage->value);
}

void Core::make_gradient(Storage* storage) {
  Value* value = storage->value;
  if (!value->is_resident() || value->stays()) return;
  value->gradient = true;
  // Without pressure there is nothing to split.
  if (config_.last_resort && stats_.num_evictions > 0 && is_movable(value) && host_->may_move()) {
    move_aside(value);
  }
  root(value);
}

std::vector<Storage*> Core::evicted_storages() const {
  std::vector<Storage*> result;
  for (const Value* value = first_recorded_; value != nullptr; value = value->next_recorded) {
    if (!value->is_resident()) result.push_back(value->storage);
  }
  return result;
}

void Core::forget_records() {
  for (Value* value = first_recorded_; value != nullptr;) {
    Value* next = value->next_recorded;
    if (value->is_resident()) root(value);
    value = next;
  }
}

}  // namespace coop
