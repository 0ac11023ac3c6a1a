// One contiguous address range, cut into blocks. Owns addresses and nothing else.
//
// Invariants (checked by is_valid()):
//   the block map tiles [begin, end)
//   held + free == end - begin; every offset and size is a multiple of the alignment
#pragma once

#include "core/space/block_map.h"
#include "core/types.h"

namespace coop {

// How a free block is chosen.
enum class Fit : uint8_t {
  kFromEnds,  // the first that fits, from the left or from the right: the sides stay apart
  kBest,      // the smallest that fits, wherever it is
};

// Overlapping bytes are moved in pieces as long as the way is: too many pieces for too little.
inline bool is_worth_moving(Bytes bytes, Bytes way) {
  constexpr Bytes kMostPieces = 32;
  return way * kMostPieces >= bytes;
}

class Arena {
 public:
  static constexpr Bytes kNowhere = -1;

  Arena(Bytes begin, Bytes end, Bytes alignment, Fit fit);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` as a block would hold them: a positive multiple of the alignment.
  Bytes rounded(Bytes bytes) const {
    const Bytes least = bytes > 0 ? bytes : 1;
    return (least + alignment_ - 1) / alignment_ * alignment_;
  }

  // Takes the low end of a free block for the left side and its high end for the right. The new
  // block is a barrier. Returns its offset, or kNowhere. `bytes` must be rounded().
  Bytes place(Value* value, Bytes bytes, Side side);
  // Takes the low end of the free block that starts at `offset`.
  void place_at(Value* value, Bytes offset, Bytes bytes);
  // Takes the high end of the free block that holds `offset`; returns its offset.
  Bytes place_at_end(Value* value, Bytes offset, Bytes bytes);
  // Takes these bytes, if they are free.
  bool place_inside(Value* value, Bytes offset, Bytes bytes);
  void free(Bytes offset);
  // More room at the right end. `bytes` must be rounded().
  void grow(Bytes bytes);
  // Gives a held block to another value; what eviction knows of it starts anew.
  void hand_over(Bytes offset, Value* value);

  // What a search reads of a block; a position holds until a block is placed or freed.
  BlockMap::Position find(Bytes offset) const { return blocks_.find(offset); }
  void set_cost(BlockMap::Position position, Cost cost) { blocks_.set_cost(position, cost); }
  void touch(BlockMap::Position position, double clock) { blocks_.touch(position, clock); }
  // Calls f(value, cost, last_access) for every held block, which may change both.
  template <typename F>
  void rescore(F&& f) {
    blocks_.rescore(f);
  }

  const BlockMap& blocks() const { return blocks_; }
  Bytes begin() const { return begin_; }
  Bytes end() const { return end_; }
  Bytes held() const { return held_; }
  Bytes free_bytes() const { return end_ - begin_ - held_; }
  Bytes largest_free() const { return blocks_.largest_free(); }
  Bytes peak() const { return peak_; }

  // The two sides are apart by the free room in the middle, the only block whose size depends on
  // how large the arena is. What the sides took together at most since the last call, with the
  // holes between their blocks: in an arena of that size every block would have lain as it did, as
  // seen from its side. That is not so with Fit::kBest, which may prefer a middle that is smaller.
  Bytes take_reach();
  Bytes reach() const { return end_ - begin_ - least_middle_; }
  // Whether a block that was just placed lies on the other side, for want of room in the middle.
  bool is_across(Bytes offset, Side side) const {
    return fit_ == Fit::kFromEnds && (side == Side::kLeft) == (offset >= middle_);
  }
  // As if the room in the middle had been smaller by so many bytes just now.
  void want_middle(Bytes bytes);
  // An offset that the room in the middle touches: left of it lies the left side.
  Bytes middle() const { return middle_; }

  bool is_valid() const;

 private:
  Bytes hold(BlockMap::Position position, Value* value, Bytes bytes, Side side);
  Bytes middle_bytes() const;

  Bytes begin_;
  Bytes end_;
  Bytes alignment_;
  Fit fit_;
  Bytes held_ = 0;
  Bytes peak_ = 0;
  Bytes middle_;
  Bytes least_middle_;  // bytes of it, since take_reach()
  BlockMap blocks_;
};

}  // namespace coop
