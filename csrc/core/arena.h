// One contiguous address range, cut into blocks. Owns addresses and nothing else.
//
// Invariants (checked by is_valid()):
//   the block map tiles [begin, end)
//   the free index holds exactly the free blocks
//   held + free == end - begin; every offset and size is a multiple of the alignment
#pragma once

#include <memory_resource>
#include <set>
#include <utility>

#include "core/block_map.h"
#include "core/types.h"

namespace coop {

class Arena {
 public:
  static constexpr Bytes kNowhere = -1;

  Arena(Bytes begin, Bytes end, Bytes alignment);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` as a block would hold them: a positive multiple of the alignment.
  Bytes rounded(Bytes bytes) const {
    const Bytes least = bytes > 0 ? bytes : 1;
    return (least + alignment_ - 1) / alignment_ * alignment_;
  }

  // Best fit: the smallest free block that fits, its low end for the left side and its high end
  // for the right; among equals the lowest respectively the highest address. The new block is a
  // barrier. Returns its offset, or kNowhere. `bytes` must be rounded().
  Bytes place(Value* value, Bytes bytes, Side side);
  void free(Bytes offset);
  // Gives a held block to another value; what eviction knows of it starts anew.
  void hand_over(Bytes offset, Value* value);

  void set_cost(Bytes offset, Cost cost) { blocks_.set_cost(blocks_.find(offset), cost); }
  void touch(Bytes offset, double clock) { blocks_.at(blocks_.find(offset)).last_access = clock; }

  const BlockMap& blocks() const { return blocks_; }
  Bytes begin() const { return begin_; }
  Bytes end() const { return end_; }
  Bytes held() const { return held_; }
  Bytes free_bytes() const { return end_ - begin_ - held_; }
  Bytes largest_free() const { return free_.empty() ? 0 : free_.rbegin()->first; }
  Bytes peak() const { return peak_; }

  bool is_valid() const;

 private:
  using Key = std::pair<Bytes, Bytes>;  // bytes, offset

  Bytes begin_;
  Bytes end_;
  Bytes alignment_;
  Bytes held_ = 0;
  Bytes peak_ = 0;
  BlockMap blocks_;
  // The index's nodes come from a pool of its own: no malloc per allocation.
  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::set<Key> free_;
};

}  // namespace coop
