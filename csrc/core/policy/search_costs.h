// What the blocks cost in one search. The map is only read: what differs from it (locked blocks are
// and held blocks are barriers, costs are capped, expensive values are moved) is put into a copy of
// a chunk's costs when the search comes to that chunk. A chunk in which nothing differs is read
// where it is.
#pragma once

#include <limits>
#include <vector>

#include "core/policy/copy_cost.h"
#include "core/policy/window.h"
#include "core/space/block_map.h"
#include "core/types.h"

namespace coop {

class SearchCosts {
 public:
  // `locked` are positions of blocks that are no barriers on the map, in order.
  SearchCosts(const BlockMap& blocks, double clock, const std::vector<BlockMap::Position>& locked)
      : blocks_(blocks), clock_(clock), locked_(locked) {}

  // Roots are barriers, or not.
  void hold_roots(bool hold) {
    holds_roots_ = hold;
    is_map_ = !hold;
  }
  // No cost is more than so many times the value's own; what is moved costs what it did.
  void cap(Cost most) {
    most_ = most;
    is_map_ = false;
  }
  // What is more expensive per byte than `price` is moved. The copy is made now, for room that will
  // be wanted for as long as values mostly are, which is `staleness`.
  void move_expensive(double price, double staleness, const CopyCost& copy_cost) {
    price_ = price;
    staleness_ = staleness;
    copy_cost_ = &copy_cost;
    is_map_ = false;
  }

  const BlockMap& blocks() const { return blocks_; }
  double clock() const { return clock_; }

  // Reads one chunk after the other; chunks without candidates may be left out.
  class Reader {
   public:
    explicit Reader(const SearchCosts& costs, int first_chunk = 0);
    const Cost* chunk(int index) {
      const bool has_locked = locked_ != end_ && locked_->chunk == index;
      if (costs_.is_map_ && !has_locked) [[likely]]
        return costs_.blocks_.chunk(index).costs;
      return changed_chunk(index);
    }

   private:
    const Cost* changed_chunk(int index);

    const SearchCosts& costs_;
    const BlockMap::Position* locked_;  // the next one
    const BlockMap::Position* end_;
    Cost own_[BlockMap::kChunkBlocks];
  };

  // Calls f(block) with what it costs here.
  template <typename F>
  void for_each(F&& f) const {
    Reader reader(*this);
    for (int c = 0; c < blocks_.num_chunks(); ++c) for_each_of_chunk(reader, c, 0, f);
  }
  template <typename F>
  void for_each_in(const Window& window, F&& f) const {
    if (window.empty()) return;
    const BlockMap::Position first = blocks_.find(window.begin);
    Reader reader(*this, first.chunk);
    int slot = first.slot;
    for (int c = first.chunk; c < blocks_.num_chunks(); ++c, slot = 0) {
      if (blocks_.chunk(c).offsets[slot] >= window.end) return;
      for_each_of_chunk(reader, c, slot, [&](const Block& block) {
        if (block.offset < window.end) f(block);
      });
    }
  }

 private:
  template <typename F>
  void for_each_of_chunk(Reader& reader, int index, int first, F&& f) const {
    const BlockMap::Chunk& chunk = blocks_.chunk(index);
    const Cost* costs = reader.chunk(index);
    for (int i = first; i < chunk.count; ++i) {
      Block block = chunk.block(i);
      block.cost = costs[i];
      f(block);
    }
  }

  const BlockMap& blocks_;
  const double clock_;
  const std::vector<BlockMap::Position>& locked_;
  bool is_map_ = true;  // but for what is locked
  bool holds_roots_ = false;
  Cost most_ = std::numeric_limits<Cost>::infinity();
  const CopyCost* copy_cost_ = nullptr;  // null: nothing is moved because it is expensive
  double price_ = 0;
  double staleness_ = 1;
};

}  // namespace coop
