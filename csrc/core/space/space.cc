#include "core/space/space.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coop {

namespace {

Bytes aligned_down(Bytes bytes, Bytes alignment) { return bytes / alignment * alignment; }

}  // namespace

Space::Space(const Config& config, Graph& graph, Journal& journal)
    : graph_(graph),
      journal_(journal),
      small_bytes_(config.small_bytes),
      partition_(config.partition),
      host_bytes_(config.host_bytes),
      arena_(0, aligned_down(config.budget, config.alignment), config.alignment,
             config.partition ? Fit::kFromEnds : Fit::kBest),
      small_(config.alignment),
      needed_(config),
      budget_(config.budget) {
  if (config.small_bytes <= 0) return;
  extent_bytes_ = SmallArea::extent_bytes(config.budget, config.small_bytes, config.alignment);
  // One extent from the start, at the left end.
  if (extent_bytes_ * 4 > config.budget) return;
  Value* extent = graph_.new_value(extent_bytes_);
  place(extent, Side::kLeft);
  add_extent(extent);
}

bool Space::place(Value* value, Side side) {
  const Bytes offset = arena_.place(value, value->bytes, side);
  if (offset == Arena::kNowhere) return false;
  value->offset = offset;
  value->arena = &arena_;
  return true;
}

bool Space::place_at(Value* value, Bytes offset) {
  if (!arena_.place_inside(value, offset, value->bytes)) return false;
  value->offset = offset;
  value->arena = &arena_;
  return true;
}

bool Space::place_small(Value* value) {
  value->arena = small_.place(value, value->bytes, &value->offset);
  return value->arena != nullptr;
}

void Space::add_extent(Value* extent) {
  small_.add_extent(extent->offset, extent_bytes_);
  needed_.extent_added(extent, arena_);
}

void Space::hold(const Value* value, Bytes bytes, Side side) {
  held_ += value->bytes;
  if (held_ > peak_) peak_ = held_;
  if (demand() > most_demand_) most_demand_ = demand();
  COOP_ASSERT(held_ <= budget_);
  journal_.emit(EventKind::kAllocate, value, bytes, has(value) ? static_cast<uint8_t>(side) : 2);
}

void Space::free(Value* value) {
  if (value->external != nullptr) {
    value->offset = Arena::kNowhere;
    return;
  }
  journal_.emit(EventKind::kFree, value);
  release(value);
}

void Space::release(Value* value) {
  held_ -= value->bytes;
  if (has(value)) {
    arena_.free(value->offset);
  } else {
    const Bytes extent = small_.free(value->arena, value->offset);
    if (extent != Arena::kNowhere) {
      Value* holder = blocks().at(arena_.find(extent)).value;
      arena_.free(extent);
      needed_.extent_freed(holder, arena_);
      graph_.recycle(holder);
    }
  }
  value->offset = Arena::kNowhere;
  value->is_candidate = false;
}

void Space::hand_over(Value* from, Value* to) {
  COOP_ASSERT(from->is_resident() && !to->is_resident() && from->bytes == to->bytes);
  to->arena = from->arena;
  to->offset = from->offset;
  from->offset = Arena::kNowhere;
  from->is_candidate = false;
  to->last_access = from->last_access;
  to->arena->hand_over(to->offset, to);
  journal_.emit(EventKind::kHandOver, to);
}

void Space::swap(Value* a, Value* b) {
  std::swap(a->offset, b->offset);
  std::swap(a->arena, b->arena);
  std::swap(a->external, b->external);
  std::swap(a->last_access, b->last_access);
  needed_.exchanged(a, b);
  for (Value* value : {a, b}) {
    if (value->arena == nullptr) continue;
    value->arena->hand_over(value->offset, value);
    journal_.emit(EventKind::kHandOver, value);
  }
}

Needed::Answer Space::needed_answer() const {
  if (grown_answer_.bytes > 0) return grown_answer_;
  return needed_.answer(arena_, small_, journal_.stats.num_evictions > 0);
}

void Space::grow(Bytes bytes) {
  grown_answer_ = needed_.answer(arena_, small_, journal_.stats.num_evictions > 0);
  arena_.grow(arena_.rounded(bytes));
  budget_ = arena_.end();
}

void Space::pend(Value* value, std::unique_ptr<Fence> fence) {
  COOP_DEBUG_ASSERT(value->locks > 0);
  pending_.push_back({value, std::move(fence)});
}

std::vector<Value*> Space::take_passed(bool wait) {
  std::vector<Value*> passed;
  // A fence may throw: those that were not asked yet stay as they are.
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (!it->fence->passed(wait)) {
      ++it;
      continue;
    }
    passed.push_back(it->value);
    it = pending_.erase(it);
  }
  return passed;
}

int64_t Space::num_blocks() const {
  int64_t count = blocks().size();
  for (const auto& extent : small_.extents()) count += extent->blocks().size();
  return count;
}

bool Space::is_valid() const {
  if (!arena_.is_valid() || held_ > peak_ || peak_ > budget_) return false;
  for (const auto& extent : small_.extents()) {
    if (!extent->is_valid()) return false;
  }
  bool valid = true;
  for_each_block([&](const Block& block) {
    if (block.is_free()) return;
    const Value* value = block.value;
    valid &= value->serial != 0 && value->offset == block.offset && has(value) &&
             value->bytes == block.bytes;
    valid &= block.cost == kBarrier || value->can_leave();
  });
  for (const Pending& pending : pending_) {
    valid &= pending.value->is_resident() && pending.value->locks > 0;
  }
  return valid;
}

}  // namespace coop
