// The blocks of an arena in address order.
//
// Two levels: a directory of chunks, each an array of at most kChunkBlocks blocks. A search walks
// arrays, so its cost per block does not depend on how many blocks there are or in which order
// they were made; insertion and removal move at most one chunk.
//
// Invariants (checked by is_valid()):
//   blocks tile [begin, end): block[i].offset + block[i].bytes == block[i + 1].offset
//   no two neighbours are both free
//   0 < chunk.count <= kChunkBlocks, and directory[i].first == chunk[i].offsets[0]
//   chunk.num_candidates == number of its blocks whose cost is not kBarrier
//   directory[i].free_bound >= bytes of every free block of chunk[i]
#pragma once

#include <compare>
#include <limits>
#include <memory>
#include <vector>

#include "core/prefetch.h"
#include "core/types.h"

namespace coop {

struct Value;

// The cost of a block that no window may contain.
inline constexpr Cost kBarrier = std::numeric_limits<Cost>::infinity();

struct Block {
  Bytes offset = 0;
  Bytes bytes = 0;
  Cost cost = 0;           // 0 when free, kBarrier when not evictable; below 0 when it is moved,
                           // not evicted, which costs the rest
  double last_access = 0;  // clock of the last use
  Value* value = nullptr;  // null when free

  bool is_free() const { return value == nullptr; }
};

class BlockMap {
 public:
  static constexpr int kChunkBlocks = 64;

  // An array for every field: a search reads three of them, and its arithmetic is done for several
  // blocks at once.
  struct Chunk {
    int count = 0;
    int num_candidates = 0;
    Bytes offsets[kChunkBlocks];
    Bytes bytes[kChunkBlocks];
    Cost costs[kChunkBlocks];
    double last_accesses[kChunkBlocks];
    Value* values[kChunkBlocks];

    Block block(int slot) const {
      return {offsets[slot], bytes[slot], costs[slot], last_accesses[slot], values[slot]};
    }
    bool is_free(int slot) const { return values[slot] == nullptr; }
  };

  // A place in the map; invalidated by insert and erase.
  struct Position {
    int chunk = 0;
    int slot = 0;
    auto operator<=>(const Position&) const = default;
  };

  BlockMap(Bytes begin, Bytes end);

  // The block that starts at `offset`, and the one that contains it.
  Position find(Bytes offset) const;
  Position find_containing(Bytes offset) const;
  Block at(Position position) const {
    return directory_[position.chunk].chunk->block(position.slot);
  }

  // A free block of at least `bytes`: the lowest or the highest one, or the smallest one (among
  // equals the lowest). False when there is none.
  bool first_fit(Bytes bytes, Side side, Position* found);
  bool best_fit(Bytes bytes, Position* found);
  Bytes largest_free() const;

  bool has_next(Position position) const;
  bool has_previous(Position position) const;
  Position next(Position position) const;
  Position previous(Position position) const;

  void insert_after(Position position, const Block& block);
  void erase(Position position);

  // Replaces a block; the caller keeps the tiling.
  void put(Position position, const Block& block);
  void set_cost(Position position, Cost cost) {
    Chunk& chunk = *directory_[position.chunk].chunk;
    Cost& own = chunk.costs[position.slot];
    chunk.num_candidates += (cost != kBarrier) - (own != kBarrier);
    own = cost;
  }
  void touch(Position position, double clock) {
    directory_[position.chunk].chunk->last_accesses[position.slot] = clock;
  }
  // Calls f(value, cost, last_access) for every held block, which may change both.
  template <typename F>
  void rescore(F&& f) {
    for (size_t c = 0; c < directory_.size(); ++c) {
      Chunk& chunk = *directory_[c].chunk;
      // All of it has long left the caches, as have the values that `f` looks at: so the values are
      // asked for a chunk ahead, and that chunk itself before.
      if (c + 2 < directory_.size()) prefetch_range(directory_[c + 2].chunk.get(), sizeof(Chunk));
      const Chunk* next = c + 1 < directory_.size() ? directory_[c + 1].chunk.get() : nullptr;
      chunk.num_candidates = 0;
      for (int i = 0; i < chunk.count; ++i) {
        if (next != nullptr && i < next->count) __builtin_prefetch(next->values[i]);
        if (!chunk.is_free(i)) f(chunk.values[i], chunk.costs[i], chunk.last_accesses[i]);
        chunk.num_candidates += chunk.costs[i] != kBarrier;
      }
    }
  }

  template <typename F>
  void for_each(F&& f) const {
    for (const Entry& entry : directory_) {
      for (int i = 0; i < entry.chunk->count; ++i) f(entry.chunk->block(i));
    }
  }

  // The blocks of [begin, end), of which the first starts at `begin`.
  template <typename F>
  void for_each_in(Bytes begin, Bytes end, F&& f) const {
    for (Position position = find(begin); at(position).offset < end; position = next(position)) {
      f(at(position));
      if (!has_next(position)) return;
    }
  }

  int64_t size() const { return size_; }
  int num_chunks() const { return static_cast<int>(directory_.size()); }
  const Chunk& chunk(int index) const { return *directory_[index].chunk; }
  // Whether a free block of that size may be in the chunk.
  bool may_have_free(int index, Bytes bytes) const { return directory_[index].free_bound >= bytes; }

  bool is_valid(Bytes begin, Bytes end) const;

 private:
  struct Entry {
    Bytes first;
    // At least the largest free block: raised when a block is freed, lowered when a search for
    // room has been in vain, so that whole chunks are passed over without being looked at.
    Bytes free_bound;
    std::unique_ptr<Chunk> chunk;
  };

  static void write(Chunk& chunk, int slot, const Block& block);
  static void copy(const Chunk& from, int first, int last, Chunk& to, int slot);
  void raise_bound(Position position);
  Bytes largest_free_of(int chunk) const;

  void split(int chunk);
  void merge_if_sparse(int chunk);  // `chunk` with the next one

  std::vector<Entry> directory_;
  int64_t size_ = 0;
};

}  // namespace coop
