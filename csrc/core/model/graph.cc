#include "core/model/graph.h"

#include <new>
#include <utility>

#include "core/prefetch.h"

namespace coop {

Value* Graph::new_value(Bytes bytes) {
  Value* value;
  if (unused_values_.empty()) {
    value = &values_.emplace_back();
    value->id = static_cast<int32_t>(values_.size()) - 1;
  } else {
    value = unused_values_.back();
    unused_values_.pop_back();
    if (!unused_values_.empty()) prefetch_range(unused_values_.back(), sizeof(Value));
    const int32_t id = value->id;
    new (value) Value;
    value->id = id;
  }
  value->serial = ++last_serial_;
  value->bytes = bytes;
  value->step = journal_.step;
  ++journal_.stats.num_values;
  return value;
}

void Graph::recycle(Value* value) {
  COOP_DEBUG_ASSERT(value->lock_index < 0 && value->users == nullptr);
  value->offset = Arena::kNowhere;
  value->recipe = nullptr;
  value->serial = 0;
  value->stale = 0;
  unused_values_.push_back(value);
  --journal_.stats.num_values;
}

Storage* Graph::new_storage(Bytes bytes, Value* value) {
  Storage* storage;
  if (unused_storages_.empty()) {
    storage = &storages_.emplace_back();
  } else {
    storage = unused_storages_.back();
    unused_storages_.pop_back();
    if (!unused_storages_.empty()) prefetch_range(unused_storages_.back(), sizeof(Storage));
    new (storage) Storage;
  }
  storage->core = core_;
  storage->bytes = bytes;
  attach(value, storage);
  return storage;
}

void Graph::attach(Value* value, Storage* storage) {
  value->storage = storage;
  storage->value = value;
}

void Graph::detach(Value* value) {
  value->storage = nullptr;
  if (value->recipe != nullptr) remove_recomputable(value);
}

void Graph::attach_again(Value* value, Storage* storage) {
  attach(value, storage);
  if (value->recipe != nullptr) add_recomputable(value);
}

void Graph::add_recomputable(Value* value) {
  value->previous_recomputable = last_recomputable_;
  value->next_recomputable = nullptr;
  (last_recomputable_ ? last_recomputable_->next_recomputable : first_recomputable_) = value;
  last_recomputable_ = value;
}

void Graph::remove_recomputable(Value* value) {
  (value->previous_recomputable ? value->previous_recomputable->next_recomputable
                                : first_recomputable_) = value->next_recomputable;
  (value->next_recomputable ? value->next_recomputable->previous_recomputable
                            : last_recomputable_) = value->previous_recomputable;
  value->previous_recomputable = value->next_recomputable = nullptr;
}

void Graph::set_recipe(Value* value, Recipe* recipe, size_t output_index) {
  value->recipe = recipe;
  value->cost = recipe->cost;
  value->output_index = static_cast<int32_t>(output_index);
  recipe->outputs[output_index] = value;
  ++recipe->num_live_outputs;
  if (value->storage != nullptr) add_recomputable(value);
}

void Graph::link(Recipe* recipe, Value* const* inputs, size_t num_inputs) {
  recipe->inputs.reserve(num_inputs);
  for (size_t i = 0; i < num_inputs; ++i) {
    Edge& edge = recipe->inputs.emplace_back(inputs[i], recipe, nullptr, inputs[i]->users);
    if (edge.next != nullptr) edge.next->previous = &edge;
    inputs[i]->users = &edge;
  }
  recipe->step = journal_.step;
  recipe->previous = last_recipe_;
  recipe->next = nullptr;
  (last_recipe_ ? last_recipe_->next : first_recipe_) = recipe;
  last_recipe_ = recipe;
  ++journal_.stats.num_recipes;
}

Recipe* Graph::take_recipe(Value* value) {
  Recipe* recipe = value->recipe;
  if (recipe == nullptr) return nullptr;
  if (value->storage != nullptr) remove_recomputable(value);
  value->recipe = nullptr;
  recipe->outputs[value->output_index] = nullptr;
  return --recipe->num_live_outputs == 0 ? recipe : nullptr;
}

void Graph::unlink(Recipe* recipe, std::vector<Value*>* unneeded) {
  for (const Edge& edge : recipe->inputs) __builtin_prefetch(&edge.value->users, /*rw=*/1);
  for (Edge& edge : recipe->inputs) {
    Value* input = edge.value;
    (edge.previous ? edge.previous->next : input->users) = edge.next;
    if (edge.next != nullptr) edge.next->previous = edge.previous;
    if (input->users == nullptr && input->storage == nullptr && input->locks == 0) {
      unneeded->push_back(input);
    }
  }
  (recipe->previous ? recipe->previous->next : first_recipe_) = recipe->next;
  (recipe->next ? recipe->next->previous : last_recipe_) = recipe->previous;
  --journal_.stats.num_recipes;
  recipe->retire(host_);
}

bool Graph::gather_dependents(std::vector<Value*> seeds, Bytes limit,
                              std::vector<Value*>* dependents) {
  const int64_t mark = new_mark();
  Bytes bytes = 0;
  while (!seeds.empty()) {
    Value* next = seeds.back();
    seeds.pop_back();
    for (Edge* edge = next->users; edge != nullptr; edge = edge->next) {
      for (Value* output : edge->recipe->outputs) {
        if (output == nullptr || output->mark == mark) continue;
        output->mark = mark;
        if (output->storage == nullptr) {
          seeds.push_back(output);
          continue;
        }
        bytes += output->bytes;
        if (bytes > limit) return false;
        dependents->push_back(output);
      }
    }
  }
  return true;
}

bool Graph::is_valid() const {
  int64_t num_values = 0;
  size_t num_locked = 0;
  for (const Value& value : values_) {
    if (value.serial == 0) continue;
    ++num_values;
    if (value.storage != nullptr && value.storage->value != &value) return false;
    const bool needed = value.storage != nullptr || value.users != nullptr;
    if (needed && !value.is_resident() && !value.has_way_back()) return false;  // lost
    if (value.is_evicted() != (!value.is_resident() && value.has_way_back())) return false;
    if (value.recipe != nullptr && value.recipe->outputs[value.output_index] != &value)
      return false;
    if ((value.locks > 0) != (value.lock_index >= 0)) return false;
    if (value.locks == 0) continue;
    ++num_locked;
    if (locked_[value.lock_index] != &value) return false;
  }
  int64_t num_recipes = 0;
  for (const Recipe* recipe = first_recipe_; recipe != nullptr; recipe = recipe->next) {
    ++num_recipes;
    int live = 0;
    for (const Value* output : recipe->outputs) live += output != nullptr;
    if (live != recipe->num_live_outputs || live == 0) return false;
  }
  return num_values == journal_.stats.num_values && num_recipes == journal_.stats.num_recipes &&
         num_locked == locked_.size();
}

}  // namespace coop
