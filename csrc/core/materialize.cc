// Bringing evicted values back: an explicit stack of records to replay (Rule 12).
#include <utility>

#include "core/check.h"
#include "core/core.h"

namespace coop {

void Core::keep(Value* value) {
  lock(value);
  kept_.push_back(value);
}

void Core::let_go(size_t base) {
  while (kept_.size() > base) {
    Value* value = kept_.back();
    kept_.pop_back();
    unlock(value);
  }
}

// All of them resident at once. They are not locked afterwards, but nothing has been allocated
// since the last of them came back. What is resident of them, and of what replays read, stays: an
// intermediate gradient that goes to make room for another input takes the whole step to bring
// back. Only where it does not fit so may it go.
void Core::make_resident(Value* const* values, size_t num_values) {
  ++materializing_;
  try {
    try {
      bring_back(values, num_values, /*hold=*/true);
    } catch (const OutOfBudget&) {
      if (failed_) throw;
      bring_back(values, num_values, /*hold=*/false);
    }
  } catch (...) {
    if (--materializing_ == 0) free_transients();
    throw;
  }
  if (--materializing_ == 0) free_transients();
}

void Core::bring_back(Value* const* values, size_t num_values, bool hold) {
  const size_t base = kept_.size();
  try {
    if (hold) {
      for (size_t i = 0; i < num_values; ++i) {
        if (values[i]->is_resident()) keep(values[i]);
      }
    }
    // One that was resident may be evicted while another is replayed, hence the loop; what was
    // materialized here is locked, so each is materialized at most once.
    for (bool complete = false; !complete;) {
      complete = true;
      for (size_t i = 0; i < num_values; ++i) {
        if (values[i]->is_resident()) {
          touch(values[i]);
          continue;
        }
        complete = false;
        materialize_value(values[i], hold);
        kept_.push_back(values[i]);
      }
    }
  } catch (...) {
    let_go(base);
    throw;
  }
  let_go(base);
}

// Leaves the value resident and locked once. With `hold`, what a replay reads stays resident from
// when the first of its other inputs is looked for.
void Core::materialize_value(Value* target, bool hold) {
  const size_t base = frames_.size();
  const size_t kept_base = kept_.size();
  auto push = [&](Value* value) {
    lock(value);
    frames_.push_back({value, kept_.size(), 0});
  };
  push(target);
  try {
    while (frames_.size() > base) {
      const Frame frame = frames_.back();
      Value* value = frame.value;
      if (!value->is_resident()) {
        COOP_ASSERT(value->record != nullptr);  // lost
        Value* missing = nullptr;
        for (Edge& edge : value->record->inputs) {
          Storage* storage = edge.value->storage;
          if (storage != nullptr && storage->in_place) split(storage);
          if (!edge.value->is_resident()) {
            missing = edge.value;
            break;
          }
        }
        if (missing != nullptr) {
          if (hold && kept_.size() == frame.kept_begin) {
            for (Edge& edge : value->record->inputs) {
              if (edge.value->is_resident()) keep(edge.value);
            }
          }
          push(missing);
          continue;
        }
        try {
          replay(value);
        } catch (const OutOfBudget&) {
          if (!make_room_for_replay(&frames_.back().attempt)) throw;
          continue;
        }
        let_go(frame.kept_begin);
      }
      frames_.pop_back();
      if (frames_.size() > base) kept_.push_back(value);  // for the frame below
    }
  } catch (...) {
    let_go(kept_base);
    while (frames_.size() > base) {
      Value* value = frames_.back().value;
      frames_.pop_back();
      unlock(value);
    }
    throw;
  }
}

void Core::replay(Value* wanted) {
  Record* record = wanted->record;
  for (Edge& edge : record->inputs) lock(edge.value);
  std::vector<Storage*> outputs(record->outputs.size(), nullptr);
  auto unlock_inputs = [&] {
    for (Edge& edge : record->inputs) unlock(edge.value);
  };
  const Origin asking = std::exchange(origin_, record->origin);
  try {
    host_->replay(*record, outputs.data());
  } catch (...) {
    origin_ = asking;
    unlock_inputs();
    throw;
  }
  clock_ += record->cost;
  ++stats_.num_replays;
  stats_.replay_cost += record->cost;
  pace_.replayed(stats_.compute_cost, stats_.replay_cost);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] != nullptr) adopt(record->outputs[i], outputs[i], record->outputs[i] == wanted);
  }
  COOP_ASSERT(wanted->is_resident());
  emit(EventKind::kReplay, wanted, static_cast<int64_t>(record->cost));
  origin_ = asking;
  for (Edge& edge : record->inputs) touch(edge.value);
  unlock_inputs();
  COOP_DEBUG_ASSERT(is_valid());
}

// The block of a replayed output goes to the value it is the content of, if anyone wants it.
void Core::adopt(Value* value, Storage* fresh, bool wanted) {
  Value* content = fresh->value;
  detach(content);
  recycle(fresh);
  const bool take = value != nullptr && !value->is_resident() &&
                    (wanted || value->storage != nullptr || value->locks > 0);
  if (take) {
    move_block(content, value);
    present(value);
    touch(value);
    refresh(value);
    if (value->storage != nullptr) host_->restore(*value->storage);
  }
  reconsider(content);
}

Storage* Core::take_for_write(Value* value, const Record& record) {
  // The locks that this replay and the frame it serves hold; any more are somebody else's.
  int32_t own_locks = 0;
  for (const Edge& edge : record.inputs) own_locks += edge.value == value;
  for (size_t i = frames_.back().kept_begin; i < kept_.size(); ++i) own_locks += kept_[i] == value;
  if (value->storage != nullptr || value->record == nullptr || value->is_unsaved() ||
      value->locks > own_locks) {
    Storage* copy = allocate(value->bytes, Side::kLeft);
    copy_content(value, copy->value, value->bytes);
    return copy;
  }
  Value* content = new_value(value->bytes);
  Storage* storage = new_storage(value->bytes, content);
  move_block(value, content);
  absent(value);
  return storage;
}

void Core::free_transients() {
  for (const Transient& transient : transients_) {
    Value* value = &values_[transient.id];
    if (value->serial == transient.serial) reconsider(value);
  }
  transients_.clear();
}

}  // namespace coop
