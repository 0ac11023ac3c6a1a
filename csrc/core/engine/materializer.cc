#include "core/engine/materializer.h"

#include <span>
#include <unordered_map>

#include "core/check.h"

namespace coop {

namespace {

// What has to be resident to bring it back.
std::span<Edge> inputs_of(const Value* value) {
  if (value->is_saved()) return {};
  return {value->recipe->inputs.begin(), value->recipe->inputs.size()};
}

}  // namespace

// What replays make for their own sake stays until the outermost one ends.
class Materializer::Restoring {
 public:
  explicit Restoring(Materializer& owner) : owner_(owner) { ++owner_.journal_.num_restoring; }
  ~Restoring() {
    if (--owner_.journal_.num_restoring == 0) owner_.collector_.free_transients();
  }
  Restoring(const Restoring&) = delete;
  Restoring& operator=(const Restoring&) = delete;

 private:
  Materializer& owner_;
};

void Materializer::hold(Value* value) {
  graph_.lock(value);
  held_.push_back(value);
}

void Materializer::let_go(size_t base) {
  while (held_.size() > base) {
    Value* value = held_.back();
    held_.pop_back();
    collector_.unlock(value);
  }
}

// What is resident of them, and of what replays read, stays: an intermediate gradient that goes to
// make room for another input takes the whole step to bring back. Only where it does not fit so may
// it go.
void Materializer::make_resident(Value* const* values, size_t num_values) {
  const Restoring restoring(*this);
  try {
    bring_back(values, num_values, /*hold_inputs=*/true);
  } catch (const OutOfBudget&) {
    if (faults_.has_struck()) throw;
    bring_back(values, num_values, /*hold_inputs=*/false);
  }
}

void Materializer::begin_to_bring_back(Value* value) {
  if (!value->is_saved()) return make_resident(&value, 1);
  const Restoring restoring(*this);
  restorer_.begin_to_load(value);
}

void Materializer::bring_back(Value* const* values, size_t num_values, bool hold_inputs) {
  const size_t base = held_.size();
  try {
    if (hold_inputs) {
      for (size_t i = 0; i < num_values; ++i) {
        if (values[i]->is_resident()) hold(values[i]);
      }
    }
    // One that was resident may be evicted while another is replayed, hence the loop; what was
    // materialized here is locked, so each is materialized at most once.
    for (bool complete = false; !complete;) {
      complete = true;
      for (size_t i = 0; i < num_values; ++i) {
        if (values[i]->is_resident()) {
          restorer_.await(values[i]);
          scores_.touch(values[i]);
          continue;
        }
        complete = false;
        materialize(values[i], hold_inputs);
        held_.push_back(values[i]);
      }
    }
  } catch (...) {
    let_go(base);
    throw;
  }
  let_go(base);
}

void Materializer::push(Value* value) {
  graph_.lock(value);
  frames_.push_back({value, held_.size(), 0});
}

// Leaves the value resident and locked once. With `hold_inputs`, what a replay reads stays resident
// from when the first of its other inputs is looked for.
void Materializer::materialize(Value* target, bool hold_inputs) {
  const size_t base = frames_.size();
  const size_t held_base = held_.size();
  push(target);
  try {
    while (frames_.size() > base) {
      const Frame frame = frames_.back();
      Value* value = frame.value;
      if (!value->is_resident()) {
        COOP_ASSERT(value->has_way_back());  // lost
        Value* missing = nullptr;
        for (Edge& edge : inputs_of(value)) {
          Storage* storage = edge.value->storage;
          if (storage != nullptr && storage->in_place) split_version(storage);
          if (!edge.value->is_resident()) {
            missing = edge.value;
            break;
          }
        }
        if (missing != nullptr) {
          if (hold_inputs && held_.size() == frame.held_begin) {
            for (Edge& edge : inputs_of(value)) {
              if (edge.value->is_resident()) hold(edge.value);
            }
          }
          push(missing);
          continue;
        }
        try {
          restorer_.restore(value);
        } catch (const OutOfBudget&) {
          if (!make_room_for_replay()) throw;
          continue;
        }
        let_go(frame.held_begin);
      }
      frames_.pop_back();
      if (frames_.size() > base) held_.push_back(value);  // for the frame below
    }
  } catch (...) {
    let_go(held_base);
    while (frames_.size() > base) {
      Value* value = frames_.back().value;
      frames_.pop_back();
      collector_.unlock(value);
    }
    throw;
  }
}

// What waits for the replay, or is read by it, is locked only to be resident, so it can be moved.
bool Materializer::make_room_for_replay() {
  std::unordered_map<Value*, int32_t> locks;
  for (Value* value : held_) ++locks[value];
  for (const Frame& frame : frames_) ++locks[frame.value];
  for (const Edge& edge : inputs_of(frames_.back().value)) locks.try_emplace(edge.value, 0);
  std::vector<Value*> movable;
  for (const auto& [value, own] : locks) {
    // Any locks besides ours are of an operator that runs on another thread.
    if (space_.has(value) && value->can_leave() && value->locks == own) movable.push_back(value);
  }
  return compactor_.make_room_for_replay(movable, &frames_.back().attempt);
}

void Materializer::split_version(Storage* storage) {
  Value* old = storage->value;
  Value* next = graph_.new_value(old->bytes);
  space_.hand_over(old, next);
  graph_.detach(old);
  graph_.attach(next, storage);
  if (old->has_way_back()) scores_.on_evicted(old);
  storage->in_place = false;
}

Storage* Materializer::take_for_write(Value* value, const Recipe& recipe) {
  // The locks that this replay and the frame it serves hold; any more are somebody else's.
  int32_t own_locks = 0;
  for (const Edge& edge : recipe.inputs) own_locks += edge.value == value;
  for (size_t i = frames_.back().held_begin; i < held_.size(); ++i) own_locks += held_[i] == value;
  if (value->storage != nullptr || !value->is_version() || value->locks > own_locks ||
      foresight_.keeps_when_written(value)) {
    Storage* copy = allocator_.allocate(value->bytes, Side::kLeft);
    mover_.copy(value, copy->value, value->bytes);
    return copy;
  }
  Value* content = graph_.new_value(value->bytes);
  Storage* storage = graph_.new_storage(value->bytes, content);
  restorer_.before_write(value);
  space_.hand_over(value, content);
  scores_.on_evicted(value);
  return storage;
}

}  // namespace coop
