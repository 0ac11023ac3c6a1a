// The searches: pure functions of the blocks and what they cost.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/policy/search_costs.h"
#include "core/policy/window.h"
#include "core/types.h"

namespace coop {

struct Value;

// Where a block ends and the next one begins.
struct WindowEdge {
  Bytes offset;
  Bytes room;      // bytes of the blocks before it that are free or evicted
  uint64_t total;  // scores of the blocks before it, modulo 2^64: the difference of two is exact
};

struct RankedWindow {
  double key;
  Bytes begin;
  Bytes end;
  Value* only;  // whose block it was, if it was one block, and not free
};

// What searches write to while they run, kept from one to the next for its memory only.
struct SearchMemory {
  struct Rank {
    double key;
    size_t index;  // in separate
  };

  std::vector<WindowEdge> edges;
  std::vector<RankedWindow> separate;  // windows that do not overlap
  size_t num_separate = 0;             // of them, those of the last search that ranked
  std::vector<Rank> ranks;
  std::vector<BlockMap::Position> locked;  // see SearchCosts
};

// The cheapest window with room for at least `bytes`: two pointers over all blocks. Ties go to the
// lowest address. What is moved and not evicted is no room. With `rank`, memory.separate has the
// others that it found.
Window find_cheapest_window(const SearchCosts& costs, Bytes bytes, bool excess, bool rank,
                            SearchMemory& memory);

// The block with the smallest cost / (bytes * staleness), DTR; with `count_free_neighbours` the
// free bytes beside it count as its own, DTE. Ties go to the lowest address.
Window find_cheapest_value(const SearchCosts& costs, bool count_free_neighbours);

}  // namespace coop
