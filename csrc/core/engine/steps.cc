#include "core/engine/steps.h"

#include <utility>
#include <vector>

namespace coop {

// Rule 6 for all parameters at once: they are about to be written, and when little is alive besides
// them (a loss, an output that is printed later), making roots of that is cheaper than a copy of
// every parameter it was computed from.
void Steps::begin() {
  journal_.optimizer_serial = graph_.last_serial() + 1;
  const int64_t mark = graph_.new_mark();
  Bytes root_bytes = 0;
  for (const Recipe* recipe = graph_.first_recipe(); recipe != nullptr; recipe = recipe->next) {
    for (const Edge& edge : recipe->inputs) {
      if (!edge.value->is_root() || edge.value->mark == mark) continue;
      edge.value->mark = mark;
      root_bytes += edge.value->bytes;
    }
  }
  std::vector<Value*> dependents;
  Bytes dependent_bytes = 0;
  for (Value* value = graph_.first_recomputable(); value != nullptr;
       value = value->next_recomputable) {
    dependent_bytes += value->bytes;
    if (dependent_bytes > root_bytes) return;
    dependents.push_back(value);
  }
  writes_.make_roots(dependents);
}

// What the optimizer wrote or made becomes a root; at a boundary, so does what has survived a whole
// step, and what still depends on recipes older than that.
void Steps::end(bool boundary) {
  const int64_t begin_serial =
      journal_.in_optimizer() ? journal_.optimizer_serial : graph_.last_serial() + 1;
  const bool may_move = journal_.in_optimizer() && host_.may_move();
  journal_.optimizer_serial = 0;
  std::vector<Value*> survivors;
  for (Value* value = graph_.first_recomputable(); value != nullptr;
       value = value->next_recomputable) {
    if (value->serial >= begin_serial || (boundary && value->step < journal_.step)) {
      survivors.push_back(value);
    }
  }
  if (boundary) {
    std::vector<Value*> served;  // by recipes that are too old
    for (const Recipe* recipe = graph_.first_recipe();
         recipe != nullptr && recipe->step + 1 < journal_.step; recipe = recipe->next) {
      for (Value* output : recipe->outputs) {
        if (output != nullptr && output->storage == nullptr) served.push_back(output);
      }
    }
    graph_.gather_dependents(std::move(served), space_.budget(), &survivors);
  }
  // Resident ones first: dropping their recipes may free what the others' replays need space for.
  // To bring one of the others back may bring back more of them.
  for (const bool all : {false, true}) {
    for (Value* value : survivors) {
      if (!value->is_root() && (all || value->is_resident())) writes_.make_roots({value});
    }
  }
  if (!boundary) return;
  collector_.free_dead();
  ++journal_.step;
  const std::vector<Relocation> moves =
      foresight_.end_step(may_move, [&](Value* value) { collector_.reconsider(value); });
  for (const Relocation& move : moves) {
    const BlockMap& blocks = space_.blocks();
    mover_.move_to(blocks.at(blocks.find(move.from)).value, move.to);
  }
  quiet_steps_.on_step();
  journal_.pace.step_ended(journal_.stats.compute_cost, journal_.stats.replay_cost);
  journal_.events.emit(EventKind::kStep, journal_.step, 0, 0, 0, 0, journal_.clock,
                       journal_.origin);
}

}  // namespace coop
