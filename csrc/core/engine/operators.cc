#include "core/engine/operators.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coop {

Operation::~Operation() {
  if (is_running()) operators_->abort(*this);
}

void Operators::begin(Operation& operation, Storage* const* inputs, size_t num_inputs) {
  std::vector<Value*>& locked = operation.locked_;
  COOP_DEBUG_ASSERT(!operation.is_running());
  locked.clear();
  writes_.begin(operation.writes);
  for (size_t i = 0; i < num_inputs; ++i) locked.push_back(inputs[i]->value);
  try {
    if (foresight_.acts_before_operator()) follow_schedule(locked);
    const bool ready = std::all_of(locked.begin(), locked.end(),
                                   [](const Value* value) { return value->is_ready(); });
    if (!ready) materializer_.make_resident(locked.data(), locked.size());
  } catch (...) {
    locked.clear();
    writes_.finish(operation.writes);
    throw;
  }
  for (Value* value : locked) graph_.lock(value);
  if (operation.lets_go) {
    // What its recipe reads must have a way back.
    for (Value* value : locked)
      value->loose_locks += operation.quiet || value->is_version() ? 1 : 0;
  }
  operation.operators_ = this;
  try {
    writes_.prepare(operation.writes, &locked);
  } catch (...) {
    abort(operation);
    throw;
  }
}

void Operators::commit(Operation& operation, Recipe* recipe, Value* const* inputs,
                       size_t num_inputs, Storage* const* fresh, size_t num_fresh, Cost cost) {
  host_.ends().stop_alternating();
  writes_.resolve(operation.writes);
  journal_.clock += cost;
  ++journal_.stats.num_operators;
  journal_.stats.compute_cost += cost;
  journal_.events.emit(EventKind::kOperator, 0, 0, 0, static_cast<int64_t>(cost), 0, journal_.clock,
                       journal_.origin);

  const bool keep =
      recipe != nullptr && adopt(recipe, operation, inputs, num_inputs, fresh, num_fresh, cost);
  const bool in_backward =
      keep && recipe->in_backward && options_.protect_backward && !journal_.in_optimizer();
  Bytes made = 0;
  foresight_.ran(keep ? recipe : nullptr, operation.locked_, cost);
  for (const Write& write : operation.writes) {
    if (!write.makes_version()) foresight_.wrote(write.storage->value);
  }
  auto add_output = [&](Value* value, size_t index) {
    // Small values are roots from the start: they are never evicted.
    if (keep && space_.has(value)) {
      graph_.set_recipe(value, recipe, index);
      value->made_in_backward = in_backward;
      made += value->bytes;
      journal_.emit(EventKind::kRecipe, value, static_cast<int64_t>(cost));
    }
    foresight_.made(value, keep ? recipe : nullptr);
    scores_.touch(value);
    if (operation.undefined) {
      value->undefined = space_.has(value);
    } else if (operation.quiet) {
      quiet_steps_.add(value);
    }
    if (value->recipe == recipe && keep) host_copies_.allow(value);
    scores_.add_candidate(value);
  };
  for (size_t i = 0; i < num_fresh; ++i) add_output(fresh[i]->value, i);
  for (size_t i = 0; i < operation.writes.size(); ++i) {
    const Write& write = operation.writes[i];
    if (!write.makes_version()) {
      if (journal_.in_optimizer()) write.storage->value->optimizer_step = journal_.step;
      continue;
    }
    if (write.kind == Write::Kind::kInPlace) {
      // Rule 5: the old version lives on without memory.
      Value* next = graph_.new_value(write.old->bytes);
      space_.hand_over(write.old, next);
      space_.needed().handed_over(write.old, next);
      foresight_.overwritten(write.old, next);
      graph_.detach(write.old);
      graph_.attach(next, write.storage);
    }
    add_output(write.storage->value, num_fresh + i);
  }
  copy_cost_.observe(cost, made);
  // After all outputs have their recipe: they are neighbours of what is evicted now.
  for (const Write& write : operation.writes) {
    if (!write.makes_version() || write.kind != Write::Kind::kInPlace) continue;
    if (write.old->has_way_back()) scores_.on_evicted(write.old);
  }
  for (Value* value : operation.locked_) {
    scores_.touch(value);
    value->loose_locks = 0;
    collector_.unlock(value);
  }
  end(operation);
  foresight_.end_operator([&](Schedule::Action::Kind kind, Value* value) { act(kind, value); });
}

// What a schedule has no use for any more. What it does not copy is recomputed.
void Operators::give_up(Value* value) {
  if (value->storage == nullptr) {
    collector_.reconsider(value);
  } else if (value->can_leave() && value->locks == 0) {
    quiet_steps_.on_search();  // it would not fit without
    if (value->is_version() && !value->is_saved()) {
      evictor_.give_up(value);
    } else {
      evictor_.evict(value);
    }
  }
}

void Operators::act(Schedule::Action::Kind kind, Value* value) {
  using Kind = Schedule::Action::Kind;
  switch (kind) {
    case Kind::kReplay:
      if (value->is_saved() && value->is_version()) host_copies_.forget(value);
      materializer_.make_resident(&value, 1);
      break;
    case Kind::kGiveUp:
      give_up(value);
      break;
    case Kind::kCopyOut:
      if (value->can_leave() && value->locks == 0) host_copies_.begin_to_save(value);
      break;
    case Kind::kCopyIn:
      materializer_.begin_to_bring_back(value);
      break;
  }
}

void Operators::follow_schedule(const std::vector<Value*>& inputs) {
  try {
    foresight_.begin_operator(inputs,
                              [&](Schedule::Action::Kind kind, Value* value) { act(kind, value); });
  } catch (const OutOfBudget&) {
    if (faults_.has_struck()) throw;
    foresight_.give_up();
  }
}

// Whether anything that the operator made is worth a recipe; if not, it is retired.
bool Operators::adopt(Recipe* recipe, const Operation& operation, Value* const* inputs,
                      size_t num_inputs, Storage* const* fresh, size_t num_fresh, Cost cost) {
  bool keep = false;
  for (size_t i = 0; i < num_fresh; ++i) keep |= space_.has(fresh[i]->value);
  for (const Write& write : operation.writes) {
    keep |= write.makes_version() && space_.has(write.storage->value);
  }
  if (!keep) {
    recipe->retire(host_);
    return false;
  }
  recipe->cost = cost;
  recipe->outputs.assign(num_fresh + operation.writes.size(), nullptr);
  graph_.link(recipe, inputs, num_inputs);
  return true;
}

// Nothing is locked for it any more.
void Operators::end(Operation& operation) {
  operation.locked_.clear();
  operation.operators_ = nullptr;
  writes_.finish(operation.writes);
}

void Operators::let_go(Operation& operation) {
  COOP_DEBUG_ASSERT(operation.writes.empty());
  host_copies_.ended_untold();
  for (Value* value : operation.locked_) collector_.unlock(value);
  end(operation);
}

void Operators::abort(Operation& operation) {
  host_.ends().stop_alternating();
  host_copies_.ended_untold();
  writes_.resolve(operation.writes);
  for (const Write& write : operation.writes) {
    if (!write.makes_version() || write.kind != Write::Kind::kCopied) continue;
    // The copy may be half written; the old version is whole.
    graph_.detach(write.storage->value);
    graph_.attach_again(write.old, write.storage);
    scores_.refresh(write.old);
    host_.restore(*write.storage);
  }
  for (Value* value : operation.locked_) {
    value->loose_locks = 0;
    collector_.unlock(value);
  }
  for (const Write& write : operation.writes) {
    // What may be half written is recomputed from its recipe.
    Value* value = write.storage->value;
    if (write.makes_version() && write.kind == Write::Kind::kInPlace && value->has_way_back() &&
        value->is_resident() && value->locks == 0) {
      // Kept since it began: its address is somebody's, so it stays as it is.
      if (value->is_kept()) {
        host_copies_.forbid(value);
        collector_.drop_recipe(value);
      } else {
        evictor_.give_up(value);
      }
    }
  }
  end(operation);
  foresight_.aborted();
}

}  // namespace coop
