#include "core/engine/allocator.h"

#include <utility>

#include "core/check.h"

namespace coop {

Storage* Allocator::allocate(Bytes bytes, Side side) {
  if (space_.has_pending()) collector_.collect_passed(/*wait=*/false);
  Value* value = graph_.new_value(space_.arena().rounded(bytes));
  place(value, bytes, space_.is_small(bytes), side, foresight_.is_following());
  if (is_asked_for()) foresight_.allocated(value);
  return graph_.new_storage(bytes, value);
}

void Allocator::place(Value* value, Bytes bytes, bool small, Side side, bool foreseen) {
  try {
    if (faults_.strikes()) throw OutOfBudget(space_.shortage(value->bytes));
    if (foreseen && !small && place_as_foreseen(value)) {
      // It lies where the schedule has room for it.
    } else if (!small || !place_small(value)) {
      if (small && space_.extent_bytes() > 0 && is_asked_for()) {
        space_.needed().stray(value, space_.arena());
      }
      const Side end = host_.ends().choose(bytes, space_.end_of(side));
      // Not for what is brought back for an optimizer: for what it makes.
      if (journal_.in_optimizer() && !journal_.is_restoring() &&
          std::exchange(gathered_serial_, journal_.optimizer_serial) != journal_.optimizer_serial) {
        compactor_.gather_gradients();
      }
      place_or_evict(value, end);
    }
  } catch (const OutOfBudget&) {
    if (!faults_.has_struck() && is_asked_for()) {
      space_.needed().refused(value, side, space_.arena());
    }
    graph_.recycle(value);
    throw;
  } catch (...) {
    graph_.recycle(value);
    throw;
  }
  if (space_.has(value) && is_asked_for()) space_.needed().placed(value, side, space_.arena());
  space_.hold(value, bytes, side);
  host_.placed(*value);
}

bool Allocator::place_as_foreseen(Value* value) {
  const Foresight::Places places =
      is_asked_for() ? foresight_.next_places() : foresight_.next_places_of_replay(value->bytes);
  for (const Bytes offset : {places.first, places.second}) {
    if (offset >= 0 && space_.place_at(value, offset)) return true;
  }
  return false;
}

// False when there is no room for another extent; the block itself may still fit elsewhere.
bool Allocator::place_small(Value* value) {
  if (space_.place_small(value)) return true;
  if (space_.extent_bytes() == 0) return false;
  Value* extent = graph_.new_value(space_.extent_bytes());
  try {
    place_lowest(extent);
  } catch (const OutOfBudget&) {
    graph_.recycle(extent);
    return false;
  }
  space_.add_extent(extent);
  space_.place_small(value);
  return true;
}

// For what stays long: at the lowest address where everything can be moved away, or evicted, so
// that it does not split what lies between the ends.
void Allocator::place_lowest(Value* value) {
  const Bytes bytes = value->bytes;
  Bytes begin = Arena::kNowhere;
  std::vector<Value*> in_the_way;
  space_.for_each_block([&](const Block& block) {
    if (begin != Arena::kNowhere && block.offset >= begin + bytes) return;
    if (!block.is_free() && !space_.is_movable(block.value)) {
      begin = Arena::kNowhere;
      in_the_way.clear();
      return;
    }
    if (begin == Arena::kNowhere) begin = block.offset;
    if (!block.is_free()) in_the_way.push_back(block.value);
  });
  Arena& arena = space_.arena();
  if (begin == Arena::kNowhere || begin + bytes > arena.end()) {
    throw OutOfBudget(space_.shortage(bytes));
  }
  for (Value* other : in_the_way) {
    if (host_.may_move() && mover_.move_above(other, begin + bytes)) continue;
    if (!evictor_.evict(other)) throw OutOfBudget(space_.shortage(bytes));
  }
  arena.place_at(value, begin, bytes);
  value->offset = begin;
  value->arena = &arena;
}

void Allocator::place_or_evict(Value* value, Side side) {
  if (space_.place(value, side)) return;
  host_copies_.await_all();
  // Before anything is moved.
  space_.needed().begin(space_.arena());
  quiet_steps_.on_search();
  // No window can do better than everything that is free or can leave.
  do {
    const Plan plan = chooser_.choose(value->bytes);
    if (!plan.empty()) {
      evictor_.apply(plan);
    } else if (!space_.has_pending() || !collector_.collect_passed(/*wait=*/true)) {
      throw OutOfBudget(space_.shortage(value->bytes));
    }
  } while (!space_.place(value, side));
  Stats& stats = journal_.stats;
  ++stats.num_forced;
  stats.fragmentation_sum += static_cast<double>(space_.budget() - space_.held() - value->bytes) /
                             static_cast<double>(space_.budget());
}

}  // namespace coop
