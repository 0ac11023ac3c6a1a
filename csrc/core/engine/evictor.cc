#include "core/engine/evictor.h"

#include "core/check.h"

namespace coop {

void Evictor::apply(const Plan& plan) {
  for (Value* value : plan.evict) evict(value);
  pack(plan.move);
}

bool Evictor::evict(Value* value) {
  COOP_ASSERT(value->can_leave() && value->locks == 0);
  if (!space_.needed().is_on()) space_.needed().begin(space_.arena());
  if (!restorer_.prepare_to_leave(value)) return false;
  give_up(value);
  return true;
}

void Evictor::give_up(Value* value) {
  COOP_ASSERT(value->has_way_back());
  if (!space_.needed().is_on()) space_.needed().begin(space_.arena());
  ++journal_.stats.num_evictions;
  journal_.stats.evicted_bytes += value->bytes;
  journal_.emit(EventKind::kEvict, value);
  space_.release(value);
  if (value->storage != nullptr) host_.release(*value->storage);
  scores_.on_evicted(value);
}

// Moves values of a window, of which nothing else is left, to its low end, so that its room is in
// one piece. Where that is not worth the while, one is evicted after all.
void Evictor::pack(const std::vector<Value*>& values) {
  const BlockMap& blocks = space_.blocks();
  for (Value* value : values) {
    const BlockMap::Position position = blocks.find(value->offset);
    if (!blocks.has_previous(position)) continue;
    const Block below = blocks.at(blocks.previous(position));
    if (!below.is_free()) continue;
    if (is_worth_moving(value->bytes, below.bytes)) {
      mover_.move_down(value, below.offset);
    } else {
      evict(value);
    }
  }
}

}  // namespace coop
