// Any sequence of the arena's operations, against a map of what is held.
#include <algorithm>
#include <map>

#include "core/model/value.h"
#include "core/policy/search.h"
#include "core/space/arena.h"
#include "input.h"

namespace {

using coop::Arena;
using coop::Block;
using coop::Bytes;
using coop::Side;

constexpr Bytes kAlignment = 64;

struct Held {
  Bytes bytes;
  coop::Value* value;
};

// The free block that must be taken, from looking at all of them.
Bytes expected_place(const std::map<Bytes, Held>& held, const Arena& arena, Bytes bytes, Side side,
                     bool best_fit) {
  Bytes begin = arena.begin(), found = Arena::kNowhere, smallest = 0;
  auto consider = [&](Bytes end) {
    const Bytes size = end - begin;
    if (size < bytes) return;
    const Bytes offset = side == Side::kLeft ? begin : end - bytes;
    const bool better = best_fit ? size < smallest : side == Side::kRight;
    if (found == Arena::kNowhere || better) {
      found = offset;
      smallest = size;
    }
  };
  for (const auto& [offset, block] : held) {
    consider(offset);
    begin = offset + block.bytes;
  }
  consider(arena.end());
  return found;
}

void check(const std::map<Bytes, Held>& held, const Arena& arena, Bytes peak) {
  EXPECT(arena.is_valid());
  Bytes sum = 0;
  for (const auto& [offset, block] : held) {
    const Block& found = arena.blocks().at(arena.blocks().find(offset));
    EXPECT(found.offset == offset && found.bytes == block.bytes && found.value == block.value);
    sum += block.bytes;
  }
  EXPECT(arena.held() == sum && arena.peak() == peak);
  EXPECT(arena.held() <= arena.end() - arena.begin());
  EXPECT(arena.free_bytes() == arena.end() - arena.begin() - sum);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool best_fit = input.flag();
  const Bytes begin = kAlignment * input.below(4);
  // Enough blocks for several chunks of the map.
  const Bytes end = begin + kAlignment * (1 + input.below(4096));
  Arena arena(begin, end, kAlignment, best_fit ? coop::Fit::kBest : coop::Fit::kFromEnds);
  coop::SearchMemory memory;
  coop::Value values[4];
  std::map<Bytes, Held> held;
  Bytes peak = 0;
  double clock = 0;
  auto any = [&] {
    auto it = held.begin();
    std::advance(it, input.below(static_cast<uint32_t>(held.size())));
    return it;
  };
  while (!input.empty()) {
    switch (input.below(8)) {
      case 0:
      case 1:
      case 2: {
        const Bytes bytes = arena.rounded(input.below(40) * kAlignment / 2);
        const Side side = input.flag() ? Side::kLeft : Side::kRight;
        coop::Value* value = &values[input.below(4)];
        const Bytes expected = expected_place(held, arena, bytes, side, best_fit);
        EXPECT(arena.place(value, bytes, side) == expected);
        if (expected == Arena::kNowhere) break;
        held.emplace(expected, Held{bytes, value});
        peak = std::max(peak, arena.held());
        break;
      }
      case 3:
      case 4:
        if (held.empty()) break;
        {
          const auto it = any();
          arena.free(it->first);
          held.erase(it);
        }
        break;
      case 5:
        if (held.empty()) break;
        {
          const auto it = any();
          it->second.value = &values[input.below(4)];
          arena.hand_over(it->first, it->second.value);
        }
        break;
      case 6:
        if (held.empty()) break;
        {
          const Bytes offset = any()->first;
          const coop::BlockMap::Position position = arena.find(offset);
          arena.set_cost(position, input.flag() ? coop::kBarrier : input.byte());
          arena.touch(position, clock += input.byte());
        }
        break;
      default:
        if (input.below(16) == 0) {
          arena.grow(kAlignment * (1 + input.below(64)));
        } else {
          // What a window frees covers the request, and nothing in it had to stay.
          const Bytes bytes = arena.rounded(input.below(512) * kAlignment);
          const bool excess = input.flag();
          const coop::SearchCosts costs(arena.blocks(), clock, memory.locked);
          const coop::Window window =
              find_cheapest_window(costs, bytes, excess, /*rank=*/false, memory);
          if (!window.empty()) {
            EXPECT(window.end - window.begin >= bytes);
            for (auto it = held.lower_bound(window.begin);
                 it != held.end() && it->first < window.end; ++it) {
              const Block& block = arena.blocks().at(arena.blocks().find(it->first));
              EXPECT(block.cost != coop::kBarrier);
            }
          }
        }
        break;
    }
    check(held, arena, peak);
  }
  return 0;
}
