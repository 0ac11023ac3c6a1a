// Who keeps whom: slots of values and storages, recipes and what they read, locks. Knows nothing of
// addresses; what is done when nothing keeps a value any more is the collector's.
//
// Invariants (checked by is_valid()):
//   storage.value->storage == &storage
//   a value that a storage or a recipe needs is resident or has a way back: none is lost
//   a value is evicted if and only if it has a way back and no block
//   every recipe has a live output, and is listed in the order of creation
//   a value is in the list of locked ones if and only if its locks are above 0
#pragma once

#include <deque>
#include <vector>

#include "core/check.h"
#include "core/journal.h"
#include "core/model/value.h"
#include "core/pages.h"

namespace coop {

class Graph {
 public:
  Graph(Core* core, Host& host, Journal& journal) : core_(core), host_(host), journal_(journal) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // --- slots
  Value* new_value(Bytes bytes);
  void recycle(Value* value);
  Storage* new_storage(Bytes bytes, Value* value);
  void recycle(Storage* storage) { unused_storages_.push_back(storage); }
  Value* value(int32_t id) { return &values_[id]; }
  size_t num_slots() const { return values_.size(); }
  int64_t last_serial() const { return last_serial_; }

  // --- who has which content
  void attach(Value* value, Storage* storage);
  void detach(Value* value);
  // Attached again, after its storage had other content for a while.
  void attach_again(Value* value, Storage* storage);

  // --- recipes
  void link(Recipe* recipe, Value* const* inputs, size_t num_inputs);
  void set_recipe(Value* value, Recipe* recipe, size_t output_index);
  // Separates a value from its recipe. Returns the recipe if that was its last output.
  Recipe* take_recipe(Value* value);
  // Retires a recipe that has no outputs left. Adds inputs that only it kept to `unneeded`.
  void unlink(Recipe* recipe, std::vector<Value*>* unneeded);
  const Recipe* first_recipe() const { return first_recipe_; }
  // The values of live storages that have a recipe, oldest first.
  Value* first_recomputable() const { return first_recomputable_; }

  // --- locks: not to be moved or evicted while an operator runs
  void lock(Value* value) {
    if (value->locks++ > 0) return;
    value->lock_index = static_cast<int32_t>(locked_.size());
    locked_.push_back(value);
  }
  // True: that was the last lock.
  bool unlock(Value* value) {
    COOP_DEBUG_ASSERT(value->locks > 0);
    if (--value->locks > 0) return false;
    Value* last = locked_.back();
    locked_[value->lock_index] = last;
    last->lock_index = value->lock_index;
    locked_.pop_back();
    value->lock_index = -1;
    return true;
  }
  const std::vector<Value*>& locked() const { return locked_; }

  // --- traversals
  // A mark that no value has yet.
  int64_t new_mark() { return ++last_mark_; }
  // The values of live storages that would be recomputed from the seeds. False when they hold more
  // than `limit` bytes.
  bool gather_dependents(std::vector<Value*> seeds, Bytes limit, std::vector<Value*>* dependents);
  // In the order of their slots; unused ones too.
  template <typename F>
  void for_each_slot(F&& f) {
    for (Value& value : values_) f(value);
  }
  template <typename F>
  void for_each_storage(F&& f) const {
    for (const Value& value : values_) {
      if (value.serial != 0 && value.storage != nullptr) f(value.storage);
    }
  }

  std::pmr::memory_resource* pages() { return &pages_; }
  bool is_valid() const;

 private:
  void add_recomputable(Value* value);
  void remove_recomputable(Value* value);

  Core* const core_;
  Host& host_;
  Journal& journal_;
  Pages pages_;
  std::pmr::deque<Value> values_{&pages_};
  std::vector<Value*> unused_values_;
  std::pmr::deque<Storage> storages_{&pages_};
  std::vector<Storage*> unused_storages_;
  int64_t last_serial_ = 0;
  int64_t last_mark_ = 0;
  Value* first_recomputable_ = nullptr;
  Value* last_recomputable_ = nullptr;
  Recipe* first_recipe_ = nullptr;
  Recipe* last_recipe_ = nullptr;
  std::vector<Value*> locked_;
};

}  // namespace coop
