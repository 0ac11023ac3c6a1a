#include "core/core.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coop {

Core::Core(const Config& config, Host* host, std::unique_ptr<const Policy> policy)
    : link(config.link, config.host_bytes > 0),
      config_(config),
      host_(*host),
      graph_(this, host_, journal_),
      space_(config_, graph_, journal_),
      foresight_(config_, graph_, space_, journal_),
      scores_(config_.policy, link, graph_, space_, journal_),
      host_copies_(config_, host_, graph_, space_, scores_, link, faults, journal_),
      chooser_(config_.policy, graph_, space_, scores_, copy_cost_, host_, foresight_, journal_,
               std::move(policy)),
      collector_(config_.policy, graph_, space_, scores_, host_copies_, foresight_, journal_),
      restorer_(host_, graph_, space_, scores_, collector_, host_copies_, foresight_, journal_),
      mover_(host_, space_, scores_, journal_),
      evictor_(host_, space_, scores_, restorer_, mover_, journal_),
      compactor_(config_.policy, host_, graph_, space_, scores_, evictor_, mover_, faults,
                 foresight_, journal_),
      quiet_steps_(config_, space_, restorer_, journal_),
      allocator_(host_, graph_, space_, chooser_, evictor_, mover_, compactor_, collector_,
                 quiet_steps_, host_copies_, faults, foresight_, journal_),
      materializer_(graph_, space_, scores_, collector_, restorer_, compactor_, allocator_, mover_,
                    faults, foresight_, journal_),
      writes_(config_.inplace, host_, graph_, space_, collector_, allocator_, mover_, materializer_,
              host_copies_),
      operators_(config_.policy, host_, graph_, space_, scores_, copy_cost_, collector_, evictor_,
                 materializer_, writes_, quiet_steps_, host_copies_, faults, foresight_, journal_),
      steps_(graph_, space_, writes_, quiet_steps_, collector_, mover_, host_, foresight_,
             journal_) {}

Storage* Core::allocate(Bytes bytes, Side side) {
  Storage* storage = allocator_.allocate(bytes, side);
  COOP_DEBUG_ASSERT(is_valid());
  return storage;
}

Storage* Core::add_external(void* address, Bytes bytes) {
  Value* value = graph_.new_value(space_.arena().rounded(bytes));
  value->offset = 0;
  value->external = address;
  return graph_.new_storage(bytes, value);
}

void Core::storage_died(Storage* storage, std::unique_ptr<Fence> fence) {
  if (fence == nullptr) [[likely]] {
    collector_.storage_died(storage);
  } else {
    collector_.storage_died(storage, std::move(fence));
  }
  COOP_DEBUG_ASSERT(is_valid());
}

void Core::begin(Operation& operation, Storage* const* inputs, size_t num_inputs) {
  operators_.begin(operation, inputs, num_inputs);
  COOP_DEBUG_ASSERT(is_valid());
}

void Core::commit(Operation& operation, Recipe* recipe, Value* const* inputs, size_t num_inputs,
                  Storage* const* fresh, size_t num_fresh, Cost cost) {
  operators_.commit(operation, recipe, inputs, num_inputs, fresh, num_fresh, cost);
  COOP_DEBUG_ASSERT(is_valid());
}

void Core::abort(Operation& operation) {
  operators_.abort(operation);
  COOP_DEBUG_ASSERT(is_valid());
}

void Core::let_go(Operation& operation) {
  operators_.let_go(operation);
  COOP_DEBUG_ASSERT(is_valid());
}

bool Core::make_room(Storage* const* inputs, size_t num_inputs, Bytes wanted, int* attempt) {
  return compactor_.make_room(inputs, num_inputs, wanted, attempt);
}

Storage* Core::take_for_write(Value* value, const Recipe& recipe) {
  return materializer_.take_for_write(value, recipe);
}

void Core::materialize(Storage* storage) {
  Value* value = storage->value;
  materializer_.make_resident(&value, 1);
  COOP_DEBUG_ASSERT(is_valid());
}

bool Core::evict(Storage* storage) {
  Value* value = storage->value;
  quiet_steps_.let_leave(value);
  if (!value->can_leave() || value->locks > 0) return !value->is_resident();
  return evictor_.evict(value);
}

void Core::evict_all() {
  quiet_steps_.end();
  evictor_.evict_all_but([](const Value*) { return false; });
}

void Core::keep(Storage* storage, const char* reason, bool for_good) {
  ++storage->keeps;
  storage->keep_reason = reason;
  if (for_good) {
    ++storage->lasting_keeps;
    storage->lasting_reason = reason;
    // Whoever has its address may write it, and go on when the storage has died.
    if (storage->value->is_resident()) host_copies_.forbid(storage->value);
  }
  if (journal_.events.enabled) {
    journal_.emit(EventKind::kKeep, storage->value, journal_.events.reason_index(reason));
  }
  scores_.refresh(storage->value);
}

void Core::unkeep(Storage* storage) {
  storage->keeps = storage->lasting_keeps;
  storage->keep_reason = storage->lasting_reason;
  if (storage->keeps > 0) return;
  journal_.emit(EventKind::kUnkeep, storage->value);
  scores_.refresh(storage->value);
}

void Core::expose(Storage* storage) {
  writes_.before_unseen_write(storage);  // may find no room
  storage->exposed = true;
}

void Core::make_root(Storage* storage) {
  if (storage->value->is_resident()) collector_.drop_recipe(storage->value);
}

void Core::make_gradient(Storage* storage) {
  Value* value = storage->value;
  if (!value->is_resident() || value->is_lasting_root()) return;
  value->gradient = true;
  // Without pressure there is nothing to split.
  if (config_.policy.move_gradients_aside && !foresight_.is_following() &&
      journal_.stats.num_evictions > 0 && space_.is_movable(value) && host_.may_move()) {
    compactor_.move_aside(value);
  }
  collector_.drop_recipe(value);
}

void Core::end_step(bool boundary) {
  steps_.end(boundary);
  COOP_DEBUG_ASSERT(is_valid());
}

std::vector<Storage*> Core::evicted_storages() const {
  std::vector<Storage*> result;
  graph_.for_each_storage([&](Storage* storage) {
    if (!storage->value->is_ready()) result.push_back(storage);
  });
  std::sort(result.begin(), result.end(),
            [](const Storage* a, const Storage* b) { return a->value->serial < b->value->serial; });
  return result;
}

void Core::grow(Bytes bytes) {
  journal_.pace.end();
  space_.grow(bytes);
  config_.budget = space_.budget();
}

void Core::forget_recipes() {
  for (Value* value = graph_.first_recomputable(); value != nullptr;) {
    Value* next = value->next_recomputable;
    if (value->is_resident()) collector_.drop_recipe(value);
    value = next;
  }
  host_copies_.close();
}

Stats Core::stats() const {
  Stats stats = journal_.stats;
  stats.budget = space_.budget();
  stats.held = space_.held();
  stats.peak = space_.peak();
  const Needed::Answer needed = space_.needed_answer();
  stats.needed = needed.bytes;
  stats.needed_is_estimate = needed.is_estimate;
  stats.free = space_.budget() - space_.held();
  stats.largest_free = space_.arena().largest_free();
  stats.num_blocks = space_.num_blocks();
  stats.num_steps = journal_.step;
  const HostPool& pool = host_copies_.pool();
  stats.host_held = pool.held();
  stats.host_peak = pool.peak();
  stats.host_bytes = pool.bytes();
  return stats;
}

void Core::log_events(bool on) {
  EventLog& events = journal_.events;
  if (on == events.enabled) return;
  events.enabled = on;
  if (!on) return;
  events.events.clear();
  events.num_dropped = 0;
  const Origin running = journal_.origin;
  space_.for_each_resident([&](const Value* value, bool small) {
    const Recipe* recipe = value->recipe;
    journal_.origin = recipe != nullptr ? recipe->origin : Origin{-1, 0};
    journal_.emit(EventKind::kAllocate, value, value->bytes, small ? 2 : 3);
    if (recipe != nullptr) {
      journal_.emit(EventKind::kRecipe, value, static_cast<int64_t>(recipe->cost));
    }
    if (value->is_kept()) {
      journal_.emit(EventKind::kKeep, value, events.reason_index(value->storage->keep_reason));
    }
  });
  journal_.origin = running;
}

}  // namespace coop
