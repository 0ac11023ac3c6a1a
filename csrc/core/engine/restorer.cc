#include "core/engine/restorer.h"

#include <utility>
#include <vector>

#include "core/check.h"

namespace coop {

void Restorer::let_leave_by_saving(Value* value) {
  COOP_DEBUG_ASSERT(!value->has_way_back() && value->is_resident());
  value->made_quietly = false;
  SavedBytes* saved = host_.new_saved_bytes(*value);
  saved->outputs.assign(1, nullptr);
  graph_.link(saved, nullptr, 0);
  graph_.set_recipe(value, saved, 0);
  journal_.emit(EventKind::kRecipe, value, static_cast<int64_t>(saved->cost));
  scores_.refresh(value);
}

bool Restorer::prepare_to_leave(Value* value) {
  if (!value->is_unsaved()) {
    if (!value->can_be_saved()) return !value->is_root();
    if (value->is_saved()) return host_copies_.save(value);
    scores_.join_pending();
    return (scores_.prefers_copy(value) && host_copies_.save(value)) || !value->is_root();
  }
  static_cast<SavedBytes*>(value->recipe)->save(host_, *value);
  value->recipe->is_unsaved = false;
  ++journal_.stats.num_saves;
  journal_.stats.saved_bytes += value->bytes;
  return true;
}

void Restorer::load(Value* wanted) {
  foresight_.expect(wanted);
  adopt(wanted, host_copies_.load(wanted), /*wanted=*/true);
  if (host_copies_.is_closed()) host_copies_.forbid(wanted);
}

void Restorer::begin_to_load(Value* wanted) {
  foresight_.expect(wanted);
  adopt(wanted, host_copies_.begin_to_load(wanted), /*wanted=*/true);
}

void Restorer::restore(Value* wanted) {
  if (wanted->is_saved()) return load(wanted);
  Recipe* recipe = wanted->recipe;
  for (Edge& edge : recipe->inputs) {
    await(edge.value);
    graph_.lock(edge.value);
  }
  std::vector<Storage*> made(recipe->outputs.size(), nullptr);
  auto unlock_inputs = [&] {
    for (Edge& edge : recipe->inputs) collector_.unlock(edge.value);
  };
  foresight_.expect(wanted);
  const Origin asking = std::exchange(journal_.origin, recipe->origin);
  try {
    recipe->replay(host_, made.data());
  } catch (...) {
    host_copies_.ended_untold();
    journal_.origin = asking;
    unlock_inputs();
    throw;
  }
  journal_.clock += recipe->cost;
  ++journal_.stats.num_replays;
  journal_.stats.replay_cost += recipe->cost;
  journal_.pace.replayed(journal_.stats.compute_cost, journal_.stats.replay_cost);
  for (size_t i = 0; i < made.size(); ++i) {
    if (made[i] != nullptr) adopt(recipe->outputs[i], made[i], recipe->outputs[i] == wanted);
  }
  COOP_ASSERT(wanted->is_resident());
  journal_.emit(EventKind::kReplay, wanted, static_cast<int64_t>(recipe->cost));
  journal_.origin = asking;
  for (Edge& edge : recipe->inputs) scores_.touch(edge.value);
  unlock_inputs();
}

// The block of a replayed output goes to the value it is the content of, if anyone wants it.
void Restorer::adopt(Value* value, Storage* made, bool wanted) {
  Value* content = made->value;
  graph_.detach(content);
  graph_.recycle(made);
  const bool take = value != nullptr && !value->is_resident() &&
                    (wanted || value->locks > 0 || foresight_.takes(value));
  if (take) {
    space_.hand_over(content, value);
    scores_.on_restored(value);
    scores_.touch(value);
    scores_.refresh(value);
    if (value->storage != nullptr && !value->arriving) host_.restore(*value->storage);
  }
  collector_.reconsider(content);
}

}  // namespace coop
