// Values and records: their lifetimes.
#include "core/graph.h"

#include "core/check.h"
#include "core/core.h"
#include "core/prefetch.h"

namespace coop {

namespace {

// What unlinking a record touches of it, when it has few inputs.
constexpr size_t kUnlinkedBytes = 192;

}  // namespace

Value* Core::new_value(Bytes bytes) {
  Value* value;
  if (unused_values_.empty()) {
    value = &values_.emplace_back();
    value->id = static_cast<int32_t>(values_.size()) - 1;
  } else {
    value = unused_values_.back();
    unused_values_.pop_back();
    if (!unused_values_.empty()) prefetch_range(unused_values_.back(), sizeof(Value));
    const int32_t id = value->id;
    new (value) Value;
    value->id = id;
  }
  if (stale_values_.size() > 2 * values_.size()) {
    // A run that never searches must not collect them for ever.
    stale_values_.clear();
    for (Value& each : values_) {
      if (each.stale != 0) stale_values_.push_back(&each);
    }
  }
  value->serial = ++next_serial_;
  value->bytes = bytes;
  value->step = step_;
  ++stats_.num_values;
  return value;
}

void Core::recycle(Value* value) {
  COOP_DEBUG_ASSERT(value->lock_index < 0 && value->users == nullptr);
  value->offset = Arena::kNowhere;
  value->record = nullptr;
  value->serial = 0;
  value->stale = 0;
  unused_values_.push_back(value);
  --stats_.num_values;
}

Storage* Core::new_storage(Bytes bytes, Value* value) {
  Storage* storage;
  if (unused_storages_.empty()) {
    storage = &storages_.emplace_back();
  } else {
    storage = unused_storages_.back();
    unused_storages_.pop_back();
    if (!unused_storages_.empty()) prefetch_range(unused_storages_.back(), sizeof(Storage));
    new (storage) Storage;
  }
  storage->core = this;
  storage->bytes = bytes;
  attach(value, storage);
  return storage;
}

void Core::attach(Value* value, Storage* storage) {
  value->storage = storage;
  storage->value = value;
}

// The list of recorded values holds those that are attached and have a record, oldest first.
void Core::detach(Value* value) {
  value->storage = nullptr;
  if (value->record == nullptr) return;
  (value->previous_recorded ? value->previous_recorded->next_recorded : first_recorded_) =
      value->next_recorded;
  (value->next_recorded ? value->next_recorded->previous_recorded : last_recorded_) =
      value->previous_recorded;
  value->previous_recorded = value->next_recorded = nullptr;
}

void Core::set_record(Value* value, Record* record, size_t index) {
  value->record = record;
  value->cost = record->cost;
  value->late = record->late && protects_late() && step_begin_serial_ == 0;
  value->output_index = static_cast<int32_t>(index);
  record->outputs[index] = value;
  ++record->num_live_outputs;
  if (value->storage != nullptr) {
    value->previous_recorded = last_recorded_;
    value->next_recorded = nullptr;
    (last_recorded_ ? last_recorded_->next_recorded : first_recorded_) = value;
    last_recorded_ = value;
  }
}

void Core::link_inputs(Record* record, Value* const* inputs, size_t num_inputs) {
  record->inputs.reserve(num_inputs);
  for (size_t i = 0; i < num_inputs; ++i) {
    Edge& edge = record->inputs.emplace_back(inputs[i], record, nullptr, inputs[i]->users);
    if (edge.next != nullptr) edge.next->previous = &edge;
    inputs[i]->users = &edge;
  }
  record->step = step_;
  record->previous = last_record_;
  record->next = nullptr;
  (last_record_ ? last_record_->next : first_record_) = record;
  last_record_ = record;
  ++stats_.num_records;
}

// Separates a value from its record. Returns the record if that was its last output.
Record* Core::drop_record(Value* value) {
  Record* record = value->record;
  if (record == nullptr) return nullptr;
  Storage* storage = value->storage;
  if (storage != nullptr) detach(value);
  value->storage = storage;
  value->record = nullptr;
  record->outputs[value->output_index] = nullptr;
  return --record->num_live_outputs == 0 ? record : nullptr;
}

// Unlinks a record that has no outputs left; inputs that only it kept are doomed.
void Core::unlink(Record* record) {
  for (const Edge& edge : record->inputs) __builtin_prefetch(&edge.value->users, /*rw=*/1);
  for (Edge& edge : record->inputs) {
    Value* input = edge.value;
    (edge.previous ? edge.previous->next : input->users) = edge.next;
    if (edge.next != nullptr) edge.next->previous = edge.previous;
    if (input->users == nullptr && input->storage == nullptr && input->locks == 0) {
      doomed_.push_back(input);
    }
  }
  (record->previous ? record->previous->next : first_record_) = record->next;
  (record->next ? record->next->previous : last_record_) = record->previous;
  --stats_.num_records;
  host_->retire(record);
}

// Iterative: chains of values that only kept each other alive can be long (Rule 12).
void Core::destroy_doomed() {
  while (!doomed_.empty()) {
    Value* value = doomed_.back();
    doomed_.pop_back();
    if (value->record != nullptr) prefetch_range(value->record, kUnlinkedBytes);
    if (value->is_resident()) free_block(value);
    if (value->is_absent()) present(value);
    needed_.freed(value);
    Record* record = drop_record(value);
    recycle(value);
    if (record != nullptr) unlink(record);
  }
}

// Called when something that kept a value, or its bytes, is gone.
void Core::reconsider(Value* value) {
  if (value->storage != nullptr || value->locks > 0) return;
  if (value->users == nullptr) {
    doomed_.push_back(value);
    destroy_doomed();
  } else if (value->record != nullptr && !value->is_unsaved()) {
    needed_.freed(value);
    if (!value->is_resident()) return;
    if (materializing_ > 0) {
      // A sibling replay may need it; free_transients() ends this.
      transients_.push_back({value->id, value->serial});
      refresh(value);
    } else {
      // Rule 4: nobody can see its bytes.
      free_block(value);
      absent(value);
    }
  }
}

// Rule 11, and Rule 6: from now on its bytes are all there is.
void Core::root(Value* value) {
  COOP_ASSERT(value->is_resident());
  value->unrecorded = false;
  if (value->record == nullptr) return;
  Record* record = drop_record(value);
  if (record != nullptr) {
    unlink(record);
    destroy_doomed();
  }
  refresh(value);
  emit(EventKind::kRoot, value);
}

bool Core::is_valid() const {
  if (!arena_.is_valid()) return false;
  for (const auto& extent : small_.extents()) {
    if (!extent->is_valid()) return false;
  }
  const BlockMap& blocks = arena_.blocks();
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      const Block block = chunk.block(i);
      if (block.is_free()) continue;
      const Value* value = block.value;
      if (value->serial == 0 || value->offset != block.offset || value->arena != &arena_ ||
          value->bytes != block.bytes) {
        return false;
      }
      // A block that a window may take must be recomputable.
      if (block.cost != kBarrier && !value->is_evictable()) return false;
    }
  }
  int64_t num_values = 0;
  for (const Value& value : values_) {
    if (value.serial == 0) continue;
    ++num_values;
    if (value.storage != nullptr && value.storage->value != &value) return false;
    // Never lost: no bytes, no record, and yet something needs it.
    if (!value.is_resident() && value.record == nullptr && value.storage != nullptr) return false;
    if (value.users != nullptr && !value.is_resident() && value.record == nullptr) return false;
    if (value.is_absent() != (!value.is_resident() && value.record != nullptr)) {
      return false;
    }
    if (value.record != nullptr && value.record->outputs[value.output_index] != &value)
      return false;
  }
  int64_t num_records = 0;
  for (const Record* record = first_record_; record != nullptr; record = record->next) {
    ++num_records;
    int live = 0;
    for (const Value* output : record->outputs) live += output != nullptr;
    if (live != record->num_live_outputs || live == 0) return false;
  }
  return num_values == stats_.num_values && num_records == stats_.num_records;
}

}  // namespace coop
