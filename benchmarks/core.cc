// Times the arena and the search of csrc/core, as ratios within one run: `make bench-core`.
//
//   search per block   find_cheapest_window over n blocks, n from 1,000 to 100,000: flat means
//   linear runners-up         the same with the windows besides the cheapest one, which it keeps
//   search / sum       the same search against a plain sum of one number per block
//   arena / malloc     place + free against glibc malloc + free, the same sequence of sizes
//
// Layouts come from random allocations and frees, in an order unrelated to addresses.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/model/value.h"
#include "core/policy/runners_up.h"
#include "core/policy/search.h"
#include "core/space/arena.h"

namespace {

using coop::Arena;
using coop::BlockMap;
using coop::Bytes;
using coop::Side;

constexpr Bytes kAlignment = 512;
constexpr int kRounds = 15;

template <typename T>
void keep(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

// Median nanoseconds of f() over several rounds.
template <typename F>
double median_ns(F&& f) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::nano>(end - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

// Mostly small, a few large, as tensors are.
Bytes random_bytes(std::mt19937_64& random) {
  const int shift = static_cast<int>(random() % 9);
  return static_cast<Bytes>((kAlignment << shift) + random() % (kAlignment << shift));
}

// An arena that has been used for a while: `blocks` blocks, about a fifth of them free, one in
// twelve of the others a barrier.
struct Layout {
  coop::Value value;
  Arena arena{0, Bytes{1} << 46, kAlignment, coop::Fit::kFromEnds};
  std::vector<Bytes> offsets;

  Layout(int64_t blocks, std::mt19937_64& random) {
    while (arena.blocks().size() < blocks) {
      for (int i = 0; i < 4; ++i) {
        const Side side = random() % 2 ? Side::kLeft : Side::kRight;
        offsets.push_back(arena.place(&value, arena.rounded(random_bytes(random)), side));
      }
      free_one(random);
    }
    for (const Bytes offset : offsets) {
      if (random() % 12 != 0) set_cost(offset, random, static_cast<double>(random() % 1000000000));
    }
  }

  void set_cost(Bytes offset, std::mt19937_64& random, double clock) {
    const BlockMap::Position position = arena.find(offset);
    arena.set_cost(position, static_cast<double>(1000 + random() % 1000000));
    arena.touch(position, clock);
  }

  void free_one(std::mt19937_64& random) {
    std::swap(offsets[random() % offsets.size()], offsets.back());
    arena.free(offsets.back());
    offsets.pop_back();
  }
};

void bench_search() {
  std::printf("search for 4 MiB\n");
  std::printf("%10s %14s %14s %14s %14s\n", "blocks", "ns per block", "to 1,000", "to plain sum",
              "runners-up, ns");
  double first = 0;
  for (const int64_t blocks : {1000, 3000, 10000, 30000, 100000}) {
    std::mt19937_64 random(7);
    Layout layout(blocks, random);
    const Bytes bytes = Bytes{4} << 20;
    coop::SearchMemory memory;
    auto search = [&](double clock, bool rank) {
      const coop::SearchCosts costs(layout.arena.blocks(), clock, memory.locked);
      const coop::Window best = find_cheapest_window(costs, bytes, /*excess=*/true, rank, memory);
      if (rank) keep(rank_runners_up(bytes, best, memory));
      return best;
    };
    double clock = 2e9;
    const int repeats = static_cast<int>(std::max<int64_t>(1, 200000 / blocks));
    const auto count = static_cast<double>(layout.arena.blocks().size()) * repeats;
    const double searched = median_ns([&] {
      for (int i = 0; i < repeats; ++i) {
        keep(search(++clock, /*rank=*/false));
      }
    });
    const double remembered = median_ns([&] {
      for (int i = 0; i < repeats; ++i) {
        keep(search(++clock, /*rank=*/true));
      }
    });
    const double summed = median_ns([&] {
      for (int i = 0; i < repeats; ++i) {
        double sum = 0;
        const BlockMap& map = layout.arena.blocks();
        for (int c = 0; c < map.num_chunks(); ++c) {
          const BlockMap::Chunk& chunk = map.chunk(c);
          for (int k = 0; k < chunk.count; ++k) sum += chunk.last_accesses[k];
        }
        keep(sum);
      }
    });
    if (first == 0) first = searched / count;
    std::printf("%10lld %14.2f %14.2f %14.2f %14.2f\n", static_cast<long long>(blocks),
                searched / count, searched / count / first, searched / summed, remembered / count);
  }
}

// The same sequence for both: true allocates the next size, false frees the slot.
struct Step {
  Bytes bytes;  // 0: free
  int slot;
};

std::vector<Step> random_steps(int live, int num_steps) {
  std::mt19937_64 random(11);
  std::vector<Step> steps;
  std::vector<int> held;
  std::vector<int> unused;
  for (int slot = 2 * live - 1; slot >= 0; --slot) unused.push_back(slot);
  while (static_cast<int>(steps.size()) < num_steps || !held.empty()) {
    const bool filling = static_cast<int>(held.size()) < live;
    const bool ending = static_cast<int>(steps.size()) >= num_steps;
    if (!ending && !unused.empty() && (filling || random() % 2)) {
      held.push_back(unused.back());
      unused.pop_back();
      steps.push_back({random_bytes(random), held.back()});
    } else {
      std::swap(held[random() % held.size()], held.back());
      unused.push_back(held.back());
      steps.push_back({0, held.back()});
      held.pop_back();
    }
  }
  return steps;
}

void bench_allocate() {
  std::printf("\nallocate and free, without eviction, the same sizes in the same order\n");
  std::printf("%10s %14s %14s %14s\n", "live", "arena ns/pair", "malloc ns/pair", "ratio");
  for (const int live : {100, 1000, 10000}) {
    const std::vector<Step> steps = random_steps(live, 100000);
    const double pairs = static_cast<double>(steps.size()) / 2;
    std::vector<Bytes> offsets(static_cast<size_t>(2 * live));
    std::vector<void*> pointers(static_cast<size_t>(2 * live));
    coop::Value value;
    const double arena_ns = median_ns([&] {
      Arena arena(0, Bytes{1} << 40, kAlignment, coop::Fit::kFromEnds);
      for (const Step& step : steps) {
        const auto slot = static_cast<size_t>(step.slot);
        if (step.bytes > 0) {
          const Side side = step.slot % 2 ? Side::kLeft : Side::kRight;
          offsets[slot] = arena.place(&value, arena.rounded(step.bytes), side);
        } else {
          arena.free(offsets[slot]);
        }
      }
    });
    const double malloc_ns = median_ns([&] {
      for (const Step& step : steps) {
        const auto slot = static_cast<size_t>(step.slot);
        if (step.bytes > 0) {
          pointers[slot] = std::malloc(static_cast<size_t>(step.bytes));
          keep(pointers[slot]);
        } else {
          std::free(pointers[slot]);
        }
      }
    });
    std::printf("%10d %14.1f %14.1f %14.2f\n", live, arena_ns / pairs, malloc_ns / pairs,
                arena_ns / malloc_ns);
  }
}

}  // namespace

int main() {
  // No system calls in malloc once it has grown: that would flatter the arena.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  bench_search();
  bench_allocate();
  return 0;
}
