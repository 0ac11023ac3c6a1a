// The budget's bytes: which value has which block, and how much is held. It evicts nothing.
//
// A block is free, held by a value, or pending a fence: its value is gone but for a lock, and the
// block becomes free once a device has passed the fence.
//
// Invariants (checked by is_valid()):
//   value.offset and value.bytes are those of the block that names the value; the blocks tile the
//   arena and its extents (see arena.h)
//   held <= peak <= budget; held counts values, not the unused rest of an extent
//   a block that a window may take belongs to a value that can leave
#pragma once

#include <memory>
#include <vector>

#include "core/journal.h"
#include "core/model/graph.h"
#include "core/space/arena.h"
#include "core/space/fence.h"
#include "core/space/needed.h"
#include "core/space/small_area.h"
#include "core/types.h"

namespace coop {

class Space {
 public:
  Space(const Config& config, Graph& graph, Journal& journal);
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  const BlockMap& blocks() const { return arena_.blocks(); }
  // Whether the value's block is one of the arena's own: neither small nor external.
  bool has(const Value* value) const { return value->arena == &arena_; }
  bool is_small(Bytes bytes) const { return bytes <= small_bytes_; }
  // Whether its block may be moved or taken now.
  bool is_movable(const Value* value) const {
    return has(value) && value->can_leave() && value->locks == 0;
  }

  // --- placing
  // The end that is a side's own.
  Side end_of(Side side) const { return partition_ ? side : Side::kLeft; }
  // In free room; false when there is none.
  bool place(Value* value, Side side);
  bool place_at(Value* value, Bytes offset);
  bool place_small(Value* value);
  // What small values need another extent of; 0: there are none.
  Bytes extent_bytes() const { return extent_bytes_; }
  void add_extent(Value* extent);
  // It has its block: counts it, and logs it with the bytes that were asked for.
  void hold(const Value* value, Bytes bytes, Side side);

  // --- giving back
  // The value is dead, or its bytes are of no use to anyone.
  void free(Value* value);
  // The same without a line in the log: it is an eviction.
  void release(Value* value);
  // The block goes to another value of the same size.
  void hand_over(Value* from, Value* to);
  // Two values exchange their bytes' places. One of them may be external.
  void swap(Value* a, Value* b);
  void grow(Bytes bytes);

  // --- fences
  // The value, which the caller has locked, is pending until the fence is passed.
  void pend(Value* value, std::unique_ptr<Fence> fence);
  bool has_pending() const { return !pending_.empty(); }
  // Those whose fences have been passed; the caller unlocks them.
  std::vector<Value*> take_passed(bool wait);

  // --- accounting
  Bytes budget() const { return budget_; }
  Bytes held() const { return held_; }
  Bytes peak() const { return peak_; }
  // How much more was held at most than when growth was last reset, had nothing been evicted.
  Bytes growth() const { return most_demand_ - demand_before_; }
  enum class Peak : uint8_t { kHeld, kGrowth };
  void reset(Peak peak) {
    if (peak == Peak::kHeld) {
      peak_ = held_;
    } else {
      most_demand_ = demand_before_ = demand();
    }
  }
  int64_t num_blocks() const;
  // What is asked for and freed by the program has to be told to it.
  Needed& needed() { return needed_; }
  Needed::Answer needed_answer() const;
  Shortage shortage(Bytes wanted) const;

  template <typename F>
  void for_each_block(F&& f) const {
    blocks().for_each(f);
  }
  // Calls f(value, whether it is small) for all values with a block.
  template <typename F>
  void for_each_resident(F&& f) const;

  bool is_valid() const;

 private:
  Bytes demand() const { return held_ + journal_.stats.evicted_bytes; }

  struct Pending {
    Value* value;
    std::unique_ptr<Fence> fence;
  };

  Graph& graph_;
  Journal& journal_;
  const Bytes small_bytes_;
  const bool partition_;
  const Bytes host_bytes_;  // of main memory, for copies: for messages
  Arena arena_;
  SmallArea small_;
  Needed needed_;
  Needed::Answer grown_answer_{};  // when it last grew
  Bytes budget_;
  Bytes extent_bytes_ = 0;
  Bytes held_ = 0;
  Bytes peak_ = 0;
  Bytes demand_before_ = 0;
  Bytes most_demand_ = 0;
  std::vector<Pending> pending_;
};

template <typename F>
void Space::for_each_resident(F&& f) const {
  auto is_extent = [&](const Block& block) {
    for (const auto& extent : small_.extents()) {
      if (extent->begin() == block.offset) return true;
    }
    return false;
  };
  for_each_block([&](const Block& block) {
    if (!block.is_free() && !is_extent(block)) f(block.value, /*small=*/false);
  });
  for (const auto& extent : small_.extents()) {
    extent->blocks().for_each([&](const Block& block) {
      if (!block.is_free()) f(block.value, /*small=*/true);
    });
  }
}

}  // namespace coop
