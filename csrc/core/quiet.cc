// Quiet steps: what is expected to fit is not recorded. If it does not fit, what was made so far is
// evicted all the same: its bytes are saved outside of the arena.
#include <algorithm>

#include "core/check.h"
#include "core/core.h"

namespace coop {

// A quiet operator made it. It may not be quiet any more: the operator itself did not fit.
void Core::leave_unrecorded(Value* value) {
  // What an optimizer makes stays (Rule 11), and small values do anyway.
  if (value->record != nullptr || value->arena != &arena_ || step_begin_serial_ > 0) return;
  value->unrecorded = true;
  if (!is_quiet()) record_saving(value);
}

// Made in this step or the one before: what has survived a whole step is a root (Rule 11).
bool Core::is_unrecorded(const Value* value) const {
  return value->unrecorded && value->step + 1 >= step_;
}

// From now on it may be evicted.
void Core::record_saving(Value* value) {
  COOP_DEBUG_ASSERT(value->record == nullptr && value->is_resident());
  value->unrecorded = false;
  Record* record = host_->new_saving_record(*value);
  record->kind = Record::Kind::kUnsaved;
  record->outputs.assign(1, nullptr);
  link_inputs(record, nullptr, 0);
  set_record(value, record, 0);
  emit(EventKind::kRecord, value, static_cast<int64_t>(record->cost));
  refresh(value);
}

// It is about to be evicted.
void Core::save(Value* value) {
  host_->save(*value->record, *value);
  value->record->kind = Record::Kind::kSaved;
  ++stats_.num_saves;
  stats_.saved_bytes += value->bytes;
}

// It does not fit. The more often that happens, the longer it takes to be quiet again.
void Core::end_quiet() {
  constexpr int64_t kMost = 1 << 20;
  quiet_steps_ = -1;
  quiet_after_ = std::min(2 * quiet_after_, kMost);
  for_each_block([&](const Block& block) {
    if (!block.is_free() && is_unrecorded(block.value)) record_saving(block.value);
  });
}

}  // namespace coop
