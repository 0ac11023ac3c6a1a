// How values are made again. A recipe replays itself: an operator of the host's, or bytes that were
// saved outside of the arena.
#pragma once

#include "core/fixed_array.h"
#include "core/model/value.h"
#include "core/types.h"

namespace coop {

class Host;

// One input of one recipe, linked into the list of all recipes that read the same value.
struct Edge {
  Value* value;
  Recipe* recipe;
  Edge* previous;
  Edge* next;
};

// Invariants (checked by Graph::is_valid()):
//   outputs[i] is null, or a value whose recipe this is and whose output_index is i
//   num_live_outputs counts those that are not null; it is above 0 until the recipe is retired
// First what its end touches, if it is never replayed.
struct alignas(64) Recipe {
  virtual ~Recipe() = default;
  // Makes the outputs again. All inputs are resident and locked. Puts a fresh storage from
  // Core::allocate (or Core::take_for_write) into made[i] for every outputs[i].
  virtual void replay(Host& host, Storage** made) = 0;
  // Nothing needs it any more; it may be destroyed once the host's lock is free.
  virtual void retire(Host&) { delete this; }

  Recipe* previous = nullptr;  // all live recipes in order of creation
  Recipe* next = nullptr;
  int32_t num_live_outputs = 0;
  Origin origin;
  bool in_backward = false;       // the operator ran in a backward pass
  bool is_unsaved = false;        // SavedBytes that it does not have yet
  FixedArray<Value*, 4> outputs;  // null where that output died, or is a root
  FixedArray<Edge, 8> inputs;
  Cost cost = 0;
  int64_t step = 0;
};

// The bytes of one value, outside of the arena. They are saved when the value is evicted.
struct SavedBytes : Recipe {
  SavedBytes() { is_unsaved = true; }
  virtual void save(Host& host, const Value& value) = 0;
};

inline bool Value::is_unsaved() const { return recipe != nullptr && recipe->is_unsaved; }

}  // namespace coop
