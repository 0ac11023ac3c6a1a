#include "core/engine/mover.h"

#include "core/check.h"

namespace coop {

void Mover::move_down(Value* value, Bytes to) {
  const Bytes from = value->offset;
  journal_.emit(EventKind::kFree, value);
  space_.arena().free(from);
  space_.arena().place_at(value, to, value->bytes);
  moved(value, from, to);
}

void Mover::move_to(Value* value, Bytes to) {
  const Bytes from = value->offset;
  journal_.emit(EventKind::kFree, value);
  space_.arena().free(from);
  const bool has_room = space_.arena().place_inside(value, to, value->bytes);
  COOP_ASSERT(has_room);
  moved(value, from, to);
}

bool Mover::move_above(Value* value, Bytes least) {
  Arena& arena = space_.arena();
  const Bytes from = value->offset;
  const Bytes to = arena.place(value, value->bytes, Side::kRight);
  if (to == Arena::kNowhere) return false;
  if (to < least) {
    arena.free(to);
    return false;
  }
  journal_.emit(EventKind::kFree, value);
  arena.free(from);
  moved(value, from, to);
  return true;
}

void Mover::move_into(Value* value, Bytes to, Side end) {
  Arena& arena = space_.arena();
  const Bytes from = value->offset;
  journal_.emit(EventKind::kFree, value);
  if (end == Side::kLeft) {
    arena.place_at(value, to, value->bytes);
  } else {
    to = arena.place_at_end(value, to, value->bytes);
  }
  arena.free(from);
  moved(value, from, to);
}

void Mover::copy(Value* from, Value* to, Bytes bytes) {
  host_.copy(*to, *from, bytes);
  ++journal_.stats.num_copies;
  journal_.stats.copied_bytes += bytes;
}

void Mover::moved(Value* value, Bytes from, Bytes to) {
  value->offset = to;
  scores_.on_moved(value);
  host_.move(*value, from);
  journal_.stats.moved_bytes += value->bytes;
  journal_.emit(EventKind::kAllocate, value, value->bytes, 3);
  if (value->recipe != nullptr) {
    journal_.emit(EventKind::kRecipe, value, static_cast<int64_t>(value->recipe->cost));
  }
}

}  // namespace coop
