#include "core/engine/host_copies.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coop {

void HostCopies::permit(Value* value) {
  value->on_host = HostState::kPossible;
  scores_.refresh(value);
}

void HostCopies::on_exchanged(Value* value) {
  if (!pool_.is_on()) return;
  value->is_candidate = false;
  scores_.refresh(value);
}

void HostCopies::forbid(Value* value) {
  discard(value);
  value->on_host = HostState::kNever;
  scores_.refresh(value);
}

void HostCopies::drop(Value* value) {
  const auto copy = copies_.find(value);
  pool_.give_back(copy->second);
  copies_.erase(copy);
  journal_.emit(EventKind::kUnsave, value);
  permit(value);
  permit_refused();
}

// Copies of what is resident are a convenience; of what is dead and has a recipe, hardly more. What
// was used last will be needed here last.
bool HostCopies::make_room(Bytes bytes) {
  if (bytes <= pool_.free_bytes()) return true;
  Bytes most = pool_.free_bytes();
  std::vector<Value*> spare;
  for (const auto& [value, extents] : copies_) {
    // What is locked may be on its way back.
    if (value->locks > 0) continue;
    if (!value->is_resident() && (value->is_attached() || value->is_root())) continue;
    spare.push_back(value);
    most += value->bytes;
  }
  if (bytes > most) return false;
  std::sort(spare.begin(), spare.end(), [](const Value* a, const Value* b) {
    return std::pair(a->last_access, a->serial) > std::pair(b->last_access, b->serial);
  });
  for (Value* value : spare) {
    const bool evicted = value->is_evicted();
    if (evicted) scores_.on_restored(value);
    drop(value);
    if (evicted) scores_.on_evicted(value);
    if (bytes <= pool_.free_bytes()) break;
  }
  return true;
}

bool HostCopies::save(Value* value) {
  COOP_DEBUG_ASSERT(value->can_leave() && value->locks == 0);
  COOP_DEBUG_ASSERT(value->storage == nullptr || !value->storage->exposed);
  if (value->is_saved()) {
    // Whoever writes it tells.
    COOP_DEBUG_ASSERT(host_.is_copy(*value, copies_.at(value)));
    return true;
  }
  if (!value->can_be_saved()) return false;
  if (!make_room(value->bytes)) return refuse(value);
  HostExtents extents = pool_.take(value, value->bytes);
  if (!copy_out(value, extents)) {
    pool_.give_back(extents);
    pool_.shrink();
    return refuse(value);
  }
  copies_.emplace(value, std::move(extents));
  value->on_host = HostState::kSaved;
  const Cost wait = link_.send_out(journal_.clock, value->bytes) - journal_.clock;
  journal_.clock += wait;
  Stats& stats = journal_.stats;
  ++stats.num_host_saves;
  stats.host_saved_bytes += value->bytes;
  stats.host_wait += wait;
  journal_.emit(EventKind::kSave, value, static_cast<int64_t>(wait));
  return true;
}

// A device that fails says so to whoever uses it next. Here nothing has left yet, and nobody who
// lets something leave may be stopped in the middle.
bool HostCopies::copy_out(Value* value, const HostExtents& extents) {
  if (faults_.fails_copy()) return false;
  try {
    return host_.copy_out(*value, extents, last_use(value));
  } catch (...) {
    return false;
  }
}

Storage* HostCopies::load(Value* value) {
  Storage* made = host_.copy_in(*value, copies_.at(value));
  const Cost wait = link_.send_in(journal_.clock, value->bytes) - journal_.clock;
  journal_.clock += wait;
  Stats& stats = journal_.stats;
  ++stats.num_host_loads;
  stats.host_loaded_bytes += value->bytes;
  stats.host_wait += wait;
  journal_.emit(EventKind::kLoad, value, static_cast<int64_t>(wait));
  return made;
}

// Its block becomes a barrier, if it has no other way back: a search finds something else.
bool HostCopies::refuse(Value* value) {
  value->on_host = HostState::kRefused;
  refused_.push_back({value->id, value->serial});
  ++journal_.stats.num_host_refusals;
  scores_.refresh(value);
  return false;
}

// There is more room than there was.
void HostCopies::permit_refused() {
  if (refused_.empty() || is_closed_) return;
  std::erase_if(refused_, [&](const Refused& refused) {
    Value* value = graph_.value(refused.id);
    if (value->serial != refused.serial || value->on_host != HostState::kRefused) return true;
    if (value->bytes > pool_.free_bytes()) return false;
    permit(value);
    return true;
  });
}

void HostCopies::close() {
  is_closed_ = true;
  if (!pool_.is_on()) return;
  graph_.for_each_slot([&](Value& value) {
    if (value.serial != 0 && value.is_resident() && value.on_host != HostState::kNever) {
      forbid(&value);
    }
  });
}

bool HostCopies::is_valid() const {
  if (!pool_.is_valid()) return false;
  Bytes held = 0;
  for (const auto& [value, extents] : copies_) {
    Bytes bytes = 0;
    for (const HostExtent& extent : extents) bytes += extent.bytes;
    if (!value->is_saved() || bytes != value->bytes || value->is_in_set()) return false;
    held += bytes;
  }
  return held == pool_.held();
}

}  // namespace coop
