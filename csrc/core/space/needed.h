// A budget in which a run would have passed without an eviction: the smallest in which everything
// lies as it would with no limit at all.
//
// As long as everything fits between the two sides the arena itself tells: what they took together
// at most. From the first block that does not, blocks are placed and freed a second time, in an
// arena without an end, as the program asks for them and lets go of them: nothing is evicted, moved
// aside or replayed there.
//
// (With less, a block that does not fit between the sides may still find a hole in the other side.)
// It is sure, but for three things, and then the answer says that it is an estimate:
//   several extents: they are larger in a larger budget, so what they move aside is estimated
//   a budget too small to bring back what is to become a root: what that is made from is counted
//   for longer than with room
//   Fit::kBest may prefer a middle that is smaller than here
#pragma once

#include <memory>
#include <vector>

#include "core/model/value.h"
#include "core/space/arena.h"
#include "core/space/small_area.h"
#include "core/types.h"

namespace coop {

class Needed {
 public:
  struct Answer {
    Bytes bytes;
    bool is_estimate;  // in a budget of that size something may be evicted after all
  };

  explicit Needed(const Config& config) : config_(config) {}

  bool is_on() const { return arena_ != nullptr; }
  // Goes on from what `arena` holds.
  void begin(Arena& arena);

  // What the program does. Values that only replays made are not known here, and passed over.
  void placed(Value* value, Side side, Arena& arena) {
    if (value->bytes > largest_) largest_ = value->bytes;
    if (!is_on() && arena.is_across(value->offset, end(side))) depart(value, arena);
    if (is_on()) place(value, side);
  }
  // A small value is about to be placed that found no room for an extent: with more room it lies in
  // one.
  void stray(const Value* value, Arena& arena) {
    begin(arena);
    stray_bytes_ += value->bytes;
    if (stray_bytes_ > most_stray_bytes_) most_stray_bytes_ = stray_bytes_;
  }
  void refused(Value* value, Side side, Arena& arena);
  // For want of room something did not become a root. What it is made from lives on.
  void kept_recipe() { is_other_program_ = true; }
  void freed(const Value* value) {
    if (!is_on()) return;
    if (value->bytes <= config_.small_bytes && offset(value) != Arena::kNowhere) {
      stray_bytes_ -= value->bytes;
    }
    free(value);
  }
  void handed_over(const Value* from, Value* to);
  void exchanged(Value* a, Value* b);
  // What the core does at the first step; to be told before it does. `optimizer_serial`: the first
  // value that the optimizer has made.
  void gather(Arena& arena, bool gradients, int64_t optimizer_serial);
  void extent_added(Value* extent, Arena& arena);
  void extent_freed(const Value* extent, Arena& arena);

  Answer answer(const Arena& arena, const SmallArea& small, bool evicted) const;

 private:
  Side end(Side side) const { return config_.partition ? side : Side::kLeft; }
  void depart(const Value* value, Arena& arena);
  void place(Value* value, Side side);
  void free(const Value* value);
  void set_offset(const Value* value, Bytes offset);
  Bytes offset(const Value* value) const {
    const auto id = static_cast<size_t>(value->id);
    return id < offsets_.size() ? offsets_[id] : Arena::kNowhere;
  }
  void fold(Arena& arena);
  bool suffices(Bytes budget, Bytes others, Bytes small_bytes) const;
  bool suffices_with_more(Bytes budget, Bytes others, Bytes small_bytes) const;

  Config config_;
  std::unique_ptr<Arena> arena_;  // null: not needed yet
  std::vector<Bytes> offsets_;    // in it, by Value::id
  int64_t num_extents_ = 0;
  Bytes extent_bytes_ = 0;
  int64_t most_extents_ = 0;
  Bytes most_ = 0;     // that all others took, until the number of extents last changed
  Bytes largest_ = 0;  // block of the others
  Bytes stray_bytes_ = 0;
  Bytes most_stray_bytes_ = 0;
  bool is_other_program_ = false;  // with room, things would have died at other times
};

}  // namespace coop
