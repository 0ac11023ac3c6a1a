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
  end_arriving(value);
  const auto copy = copies_.find(value);
  pool_.give_back(copy->second.extents);
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
  for (const auto& [value, copy] : copies_) {
    // What is locked may be on its way back.
    if (value->locks > 0 || value->arriving) continue;
    if (!value->is_resident() && (value->is_attached() || value->is_root())) continue;
    spare.push_back(value);
    most += value->bytes;
  }
  if (bytes > most) return false;
  std::sort(spare.begin(), spare.end(), [](const Value* a, const Value* b) {
    return std::pair(a->last_access, a->serial) > std::pair(b->last_access, b->serial);
  });
  for (Value* value : spare) {
    forget(value);
    if (bytes <= pool_.free_bytes()) break;
  }
  return true;
}

void HostCopies::forget(Value* value) {
  const bool evicted = value->is_evicted();
  if (evicted) scores_.on_restored(value);
  drop(value);
  if (evicted) scores_.on_evicted(value);
}

void HostCopies::wait_until(double clock) {
  const Cost wait = std::max(clock - journal_.clock, 0.0);
  journal_.clock += wait;
  journal_.stats.host_wait += wait;
}

bool HostCopies::save(Value* value) {
  if (!begin_to_save(value)) return false;
  wait_until(copies_.at(value).complete);
  return true;
}

bool HostCopies::begin_to_save(Value* value) {
  COOP_DEBUG_ASSERT(value->can_leave() && value->locks == 0);
  COOP_DEBUG_ASSERT(value->storage == nullptr || !value->storage->exposed);
  if (value->is_saved()) {
    // Whoever writes it tells.
    COOP_DEBUG_ASSERT(host_.is_copy(*value, copies_.at(value).extents));
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
  const double complete = link_.send_out(journal_.clock, value->bytes);
  copies_.emplace(value, Copy{std::move(extents), complete});
  value->on_host = HostState::kSaved;
  Stats& stats = journal_.stats;
  ++stats.num_host_saves;
  stats.host_saved_bytes += value->bytes;
  journal_.emit(EventKind::kSave, value, static_cast<int64_t>(complete - journal_.clock));
  scores_.refresh(value);  // to leave costs half now
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

Storage* HostCopies::begin_copy_in(Value* value, bool later) {
  Copy& copy = copies_.at(value);
  Storage* made = host_.copy_in(*value, copy.extents, later);
  copy.arrives = link_.send_in(journal_.clock, value->bytes);
  Stats& stats = journal_.stats;
  ++stats.num_host_loads;
  stats.host_loaded_bytes += value->bytes;
  journal_.emit(EventKind::kLoad, value, static_cast<int64_t>(copy.arrives - journal_.clock));
  return made;
}

Storage* HostCopies::load(Value* value) {
  Storage* made = begin_copy_in(value, /*later=*/false);
  wait_until(copies_.at(value).arrives);
  return made;
}

Storage* HostCopies::begin_to_load(Value* value) {
  Storage* made = begin_copy_in(value, /*later=*/true);
  value->arriving = true;
  arriving_.push_back(value);
  return made;
}

void HostCopies::end_arriving(Value* value) {
  if (!value->arriving) return;
  value->arriving = false;
  std::erase(arriving_, value);
}

void HostCopies::await(Value* value) {
  if (!value->arriving) return;
  end_arriving(value);
  if (!value->is_resident()) return;  // it was given up on its way
  wait_until(copies_.at(value).arrives);
  host_.arrived(*value);
  scores_.refresh(value);
  if (value->storage != nullptr) host_.restore(*value->storage);
}

void HostCopies::await_all() {
  while (!arriving_.empty()) await(arriving_.back());
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
  await_all();
  graph_.for_each_slot([&](Value& value) {
    if (value.serial != 0 && value.is_resident() && value.on_host != HostState::kNever) {
      forbid(&value);
    }
  });
}

bool HostCopies::is_valid() const {
  if (!pool_.is_valid()) return false;
  Bytes held = 0;
  for (const Value* value : arriving_) {
    if (!value->arriving || !value->is_saved()) return false;
  }
  for (const auto& [value, copy] : copies_) {
    Bytes bytes = 0;
    for (const HostExtent& extent : copy.extents) bytes += extent.bytes;
    if (!value->is_saved() || bytes != value->bytes || value->is_in_set()) return false;
    held += bytes;
  }
  return held == pool_.held();
}

}  // namespace coop
