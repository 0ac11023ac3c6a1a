// Memory: allocation, eviction, accounting.
#include "core/core.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coop {

namespace {

Bytes aligned_down(Bytes bytes, Bytes alignment) { return bytes / alignment * alignment; }

}  // namespace

OutOfBudget::OutOfBudget(const Shortage& shortage)
    : std::runtime_error("out of budget: " + std::to_string(shortage.wanted) +
                         " bytes wanted, at most " + std::to_string(shortage.largest_window) +
                         " consecutive bytes can be freed of a budget of " +
                         std::to_string(shortage.budget)),
      shortage(shortage) {}

Core::Core(const Config& config, Host* host)
    : config_(config),
      host_(host),
      arena_(0, aligned_down(config.budget, config.alignment), config.alignment,
             config.partition ? Fit::kFromEnds : Fit::kBest),
      small_(config.alignment),
      needed_(config),
      search_(goes_further()),
      quiet_after_(config.quiet_after) {
  if (config.small_bytes <= 0) return;
  extent_bytes_ = SmallArea::extent_bytes(config.budget, config.small_bytes, config.alignment);
  // One extent from the start, at the left end.
  if (extent_bytes_ * 4 > config.budget) return;
  Value* extent = new_value(extent_bytes_);
  extent->arena = &arena_;
  extent->offset = arena_.place(extent, extent_bytes_, Side::kLeft);
  small_.add_extent(extent->offset, extent_bytes_);
  needed_.extent_added(extent, arena_);
}

Core::~Core() = default;

Storage* Core::allocate(Bytes bytes, Side side) {
  Value* value = new_value(arena_.rounded(bytes));
  place(value, bytes, bytes <= config_.small_bytes, side);
  Storage* storage = new_storage(bytes, value);
  COOP_DEBUG_ASSERT(is_valid());
  return storage;
}

// Gives the value a block, or recycles it and throws. `bytes` as asked for.
void Core::place(Value* value, Bytes bytes, bool small, Side side) {
  try {
    if (fail_in_ > 0 && --fail_in_ == 0) {
      failed_ = true;
      throw OutOfBudget(shortage(value->bytes));
    }
    if (!small || !place_small(value)) {
      Side end = config_.partition ? side : Side::kLeft;
      if (bytes >= alternating_bytes_) {
        end = next_end_;
        next_end_ = end == Side::kLeft ? Side::kRight : Side::kLeft;
      }
      // Not what is brought back for an optimizer: what it makes.
      if (step_begin_serial_ > 0 && materializing_ == 0 && !std::exchange(gathered_, true)) {
        gather_gradients();
      }
      value->offset = place_or_evict(value, value->bytes, end);
      value->arena = &arena_;
    }
  } catch (const OutOfBudget&) {
    if (!failed_ && is_asked_for()) needed_.refused(value, side, arena_);
    recycle(value);
    throw;
  } catch (...) {
    recycle(value);
    throw;
  }
  if (value->arena == &arena_ && is_asked_for()) needed_.placed(value, side, arena_);
  held_ += value->bytes;
  if (held_ > peak_) peak_ = held_;
  COOP_ASSERT(held_ <= config_.budget);
  emit(EventKind::kAllocate, value, bytes,
       value->arena != &arena_ ? 2 : static_cast<uint8_t>(side));
}

// False when there is no room for another extent; the block itself may still fit elsewhere.
bool Core::place_small(Value* value) {
  value->arena = small_.place(value, value->bytes, &value->offset);
  if (value->arena != nullptr) return true;
  if (extent_bytes_ == 0) return false;
  Value* extent = new_value(extent_bytes_);
  extent->arena = &arena_;
  try {
    extent->offset = place_lowest(extent, extent_bytes_);
  } catch (const OutOfBudget&) {
    recycle(extent);
    return false;
  }
  small_.add_extent(extent->offset, extent_bytes_);
  needed_.extent_added(extent, arena_);
  value->arena = small_.place(value, value->bytes, &value->offset);
  return true;
}

// For what stays long: at the lowest address where everything can be moved away, or evicted, so
// that it does not split what lies between the ends.
Bytes Core::place_lowest(Value* value, Bytes bytes) {
  Bytes begin = Arena::kNowhere;
  to_evict_.clear();
  for_each_block([&](const Block& block) {
    if (begin != Arena::kNowhere && block.offset >= begin + bytes) return;
    if (!block.is_free() && !is_movable(block.value)) {
      begin = Arena::kNowhere;
      to_evict_.clear();
      return;
    }
    if (begin == Arena::kNowhere) begin = block.offset;
    if (!block.is_free()) to_evict_.push_back(block.value);
  });
  if (begin == Arena::kNowhere || begin + bytes > arena_.end()) {
    throw OutOfBudget(shortage(bytes));
  }
  for (Value* other : to_evict_) {
    if (!host_->may_move() || !move_above(other, begin + bytes)) evict_value(other);
  }
  arena_.place_at(value, begin, bytes);
  return begin;
}

Bytes Core::place_or_evict(Value* value, Bytes bytes, Side side) {
  Bytes offset = arena_.place(value, bytes, side);
  if (offset != Arena::kNowhere) return offset;
  if (is_quiet()) end_quiet();
  quiet_steps_ = -1;
  // No window can do better than everything that is free or evictable.
  do {
    const Window window = choose(bytes);
    if (window.empty()) throw OutOfBudget(shortage(bytes));
    evict_window(window);
    offset = arena_.place(value, bytes, side);
  } while (offset == Arena::kNowhere);
  ++stats_.num_forced;
  stats_.fragmentation_sum +=
      static_cast<double>(config_.budget - held_ - bytes) / static_cast<double>(config_.budget);
  return offset;
}

void Core::evict_window(const Window& window) {
  const bool may_move = host_->may_move();
  to_evict_.clear();
  to_move_.clear();
  auto spared = spared_.begin();  // in the order of their addresses, too
  for_each_block_in(window, [&](const Block& block) {
    if (block.is_free()) return;
    const bool is_spared = spared != spared_.end() && *spared == block.value;
    spared += is_spared;
    (may_move && (block.value->late || is_spared) ? to_move_ : to_evict_).push_back(block.value);
  });
  for (Value* value : to_evict_) evict_value(value);
  pack(to_move_);
}

void Core::evict_value(Value* value) {
  COOP_ASSERT(value->is_evictable() && value->locks == 0);
  if (!needed_.is_on()) needed_.begin(arena_);
  if (value->is_unsaved()) save(value);
  ++stats_.num_evictions;
  stats_.evicted_bytes += value->bytes;
  emit(EventKind::kEvict, value);
  release_block(value);
  if (value->storage != nullptr) host_->release(*value->storage);
  absent(value);
}

void Core::free_block(Value* value) {
  if (value->external != nullptr) {
    value->offset = Arena::kNowhere;
    return;
  }
  emit(EventKind::kFree, value);
  release_block(value);
}

void Core::release_block(Value* value) {
  held_ -= value->bytes;
  if (value->arena == &arena_) {
    arena_.free(value->offset);
  } else {
    const Bytes extent = small_.free(value->arena, value->offset);
    if (extent != Arena::kNowhere) {
      Value* holder = arena_.blocks().at(arena_.find(extent)).value;
      arena_.free(extent);
      needed_.extent_freed(holder, arena_);
      recycle(holder);
    }
  }
  value->offset = Arena::kNowhere;
  value->is_candidate = false;
}

void Core::move_block(Value* from, Value* to) {
  COOP_ASSERT(from->is_resident() && !to->is_resident() && from->bytes == to->bytes);
  to->arena = from->arena;
  to->offset = from->offset;
  from->offset = Arena::kNowhere;
  from->is_candidate = false;
  to->last_access = from->last_access;
  to->arena->hand_over(to->offset, to);
  emit(EventKind::kHandOver, to);
}

void Core::copy_content(Value* from, Value* to, Bytes bytes) {
  host_->copy(*to, *from, bytes);
  ++stats_.num_copies;
  stats_.copied_bytes += bytes;
}

void Core::log_events(bool on) {
  if (on == events_.enabled) return;
  events_.enabled = on;
  if (!on) return;
  events_.events.clear();
  events_.num_dropped = 0;
  const Origin running = origin_;
  std::vector<const Arena*> arenas{&arena_};
  for (const auto& extent : small_.extents()) arenas.push_back(extent.get());
  auto is_extent = [&](const Block& block) {
    return std::any_of(arenas.begin() + 1, arenas.end(),
                       [&](const Arena* extent) { return extent->begin() == block.offset; });
  };
  for (const Arena* arena : arenas) {
    const BlockMap& blocks = arena->blocks();
    for (int c = 0; c < blocks.num_chunks(); ++c) {
      for (int i = 0; i < blocks.chunk(c).count; ++i) {
        const Block block = blocks.chunk(c).block(i);
        if (block.is_free() || (arena == &arena_ && is_extent(block))) continue;
        const Value* value = block.value;
        origin_ = value->record != nullptr ? value->record->origin : Origin{-1, 0};
        emit(EventKind::kAllocate, value, value->bytes, arena == &arena_ ? 3 : 2);
        if (value->record != nullptr) {
          emit(EventKind::kRecord, value, static_cast<int64_t>(value->record->cost));
        }
        if (value->storage != nullptr && value->storage->pins > 0) {
          emit(EventKind::kPin, value, events_.reason_index(value->storage->pin_reason));
        }
      }
    }
  }
  origin_ = running;
}

Storage* Core::add_external(void* address, Bytes bytes) {
  Value* value = new_value(arena_.rounded(bytes));
  value->offset = 0;
  value->external = address;
  return new_storage(bytes, value);
}

void Core::storage_died(Storage* storage) {
  if (storage->writers > 0) {
    storage->dead = true;  // commit() or abort() ends it
    return;
  }
  Value* value = storage->value;
  detach(value);
  recycle(storage);
  reconsider(value);
  COOP_DEBUG_ASSERT(is_valid());
}

void Core::grow(Bytes bytes) {
  stats_.needed = needed_.bytes(arena_, small_, stats_.num_evictions > 0);
  pace_.end();
  arena_.grow(arena_.rounded(bytes));
  config_.budget = arena_.end();
}

Stats Core::stats() const {
  Stats stats = stats_;
  stats.budget = config_.budget;
  stats.held = held_;
  stats.peak = peak_;
  if (stats.needed == 0) stats.needed = needed_.bytes(arena_, small_, stats_.num_evictions > 0);
  stats.free = config_.budget - held_;
  stats.largest_free = arena_.largest_free();
  stats.num_blocks = arena_.blocks().size();
  for (const auto& extent : small_.extents()) stats.num_blocks += extent->blocks().size();
  stats.num_steps = step_;
  return stats;
}

Shortage Core::shortage(Bytes wanted) {
  Shortage result;
  result.wanted = wanted;
  result.budget = config_.budget;
  result.held = held_;
  const BlockMap& blocks = arena_.blocks();
  Bytes run = 0;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      const Block block = chunk.block(i);
      const Value* value = block.value;
      bool usable = true;
      if (value != nullptr) {
        usable = false;
        if (value->locks > 0) {
          result.locked_bytes += block.bytes;
        } else if (value->storage != nullptr && value->storage->pins > 0) {
          result.pinned_bytes += block.bytes;
          const std::string reason = value->storage->pin_reason;
          auto pin = std::find_if(result.pins.begin(), result.pins.end(),
                                  [&](const auto& entry) { return entry.first == reason; });
          if (pin == result.pins.end()) pin = result.pins.insert(pin, {reason, 0});
          pin->second += block.bytes;
        } else if (value->record != nullptr) {
          usable = true;
        } else if (value->storage != nullptr && value->storage->handle == nullptr) {
          // No operator has returned it yet: it belongs to the one that runs.
          result.temporary_bytes += block.bytes;
        } else {
          result.root_bytes += block.bytes;
        }
      }
      run = usable ? run + block.bytes : 0;
      result.largest_window = std::max(result.largest_window, run);
    }
  }
  // More budget is more room at the right end, behind the last run.
  result.sufficient_budget = config_.budget + arena_.rounded(wanted) - run;
  return result;
}

}  // namespace coop
