#include "core/engine/collector.h"

#include <utility>

#include "core/check.h"
#include "core/prefetch.h"

namespace coop {

namespace {

// What unlinking a recipe touches of it, when it has few inputs.
constexpr size_t kUnlinkedBytes = 192;

}  // namespace

void Collector::reconsider(Value* value) {
  if (value->storage != nullptr || value->locks > 0) return;
  if (value->users == nullptr) {
    unneeded_.push_back(value);
    destroy_unneeded();
  } else if (value->is_version()) {
    space_.needed().freed(value);
    if (!value->is_resident()) return;
    if (journal_.is_restoring()) {
      // A sibling replay may need it; free_transients() ends this.
      transients_.push_back({value->id, value->serial});
      scores_.refresh(value);
    } else if (is_worth_keeping(value)) {
      scores_.refresh(value);
    } else {
      // Rule 4: nobody can see its bytes.
      space_.free(value);
      scores_.on_evicted(value);
    }
  }
}

// Whether a dead value is: see Note [Dead values].
bool Collector::is_worth_keeping(const Value* value) const {
  if (foresight_.is_following()) return foresight_.wants(value);
  if (!options_.keep_needed || journal_.stats.num_evictions == 0) return false;
  for (const Edge* edge = value->users; edge != nullptr; edge = edge->next) {
    for (const Value* result : edge->recipe->outputs) {
      if (result != nullptr && result->storage != nullptr && !result->is_resident()) return true;
    }
  }
  return false;
}

// Iterative: chains of values that only kept each other alive can be long (Rule 12).
void Collector::destroy_unneeded() {
  while (!unneeded_.empty()) {
    Value* value = unneeded_.back();
    unneeded_.pop_back();
    if (value->recipe != nullptr) prefetch_range(value->recipe, kUnlinkedBytes);
    if (value->is_resident()) space_.free(value);
    if (value->is_evicted()) scores_.on_restored(value);
    host_copies_.discard(value);
    foresight_.destroyed(value);
    space_.needed().freed(value);
    Recipe* recipe = graph_.take_recipe(value);
    graph_.recycle(value);
    if (recipe != nullptr) graph_.unlink(recipe, &unneeded_);
  }
}

void Collector::storage_died(Storage* storage) {
  if (storage->writers > 0) {
    storage->dead = true;  // the operator that writes it ends it
    return;
  }
  Value* value = storage->value;
  foresight_.died(value);
  graph_.detach(value);
  graph_.recycle(storage);
  if (value->locks > 0 && value->locks == value->loose_locks) let_go(value);
  reconsider(value);
}

// The operator that has it locked does not need its bytes any more; it ends when that does. What it
// alone could be brought back from stays.
void Collector::let_go(Value* value) {
  const bool needed = value->users != nullptr && !value->is_version();
  if (needed || !value->is_resident() || value->external != nullptr || is_worth_keeping(value)) {
    return;
  }
  space_.needed().freed(value);
  space_.free(value);
  if (value->has_way_back()) scores_.on_evicted(value);
}

void Collector::storage_died(Storage* storage, std::unique_ptr<Fence> fence) {
  Value* value = storage->value;
  if (value->is_resident() && value->external == nullptr) {
    graph_.lock(value);
    space_.pend(value, std::move(fence));
  }
  storage_died(storage);
}

bool Collector::collect_passed(bool wait) {
  const std::vector<Value*> passed = space_.take_passed(wait);
  for (Value* value : passed) unlock(value);
  return !passed.empty();
}

void Collector::drop_recipe(Value* value) {
  COOP_ASSERT(value->is_resident() || value->is_saved());
  value->made_quietly = value->undefined = false;
  if (value->recipe == nullptr) return;
  foresight_.fixed(value);
  // It was protected because to recompute it takes the whole step.
  if (value->can_be_saved()) value->made_in_backward = false;
  if (Recipe* recipe = graph_.take_recipe(value)) {
    graph_.unlink(recipe, &unneeded_);
    destroy_unneeded();
  }
  scores_.refresh(value);
  journal_.emit(EventKind::kRoot, value);
}

void Collector::free_transients() {
  for (const Transient& transient : transients_) {
    Value* value = graph_.value(transient.id);
    if (value->serial == transient.serial) reconsider(value);
  }
  transients_.clear();
}

void Collector::free_dead() {
  std::vector<Value*> dead;
  space_.for_each_block([&](const Block& block) {
    const Value* value = block.value;
    if (value == nullptr || value->storage != nullptr || value->locks > 0) return;
    if (value->is_version()) dead.push_back(block.value);
  });
  for (Value* value : dead) {
    space_.free(value);
    scores_.on_evicted(value);
  }
}

}  // namespace coop
