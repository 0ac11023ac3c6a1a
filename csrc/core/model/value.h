// Storages and values: what memory holds, and how it came to be.
//
//   Storage --value--> Value (the current version) --recipe--> Recipe --inputs--> Value ...
//
// A value exists while it is the content of a live storage, or a live recipe reads it, or it is
// locked. A recipe exists while one of its outputs does. Recipes keep values alive, not bytes
// (Rule 3); only a root that is read by a recipe keeps its bytes.
//
// Where a value came from and whether it may go are two questions: `recipe == nullptr` says that it
// is a root, `can_leave()` that its block may be taken from it. There are two ways back: to replay
// its recipe, or a copy of its bytes in main memory, which roots may have too.
#pragma once

#include "core/model/host_state.h"
#include "core/space/arena.h"
#include "core/types.h"

namespace coop {

class Core;
struct Edge;
struct Recipe;
struct Value;

// A storage of the outside world that is alive: some tensor, or the running operator, holds it.
struct alignas(64) Storage {
  Value* value = nullptr;  // current content; never null
  Core* core = nullptr;
  void* handle = nullptr;  // the host's own object, null until the host has seen it
  Bytes bytes = 0;         // as asked for
  const char* keep_reason = nullptr;
  const char* lasting_reason = nullptr;  // of what keeps it for good
  uint32_t keeps = 0;                    // not to be evicted until unkept
  uint32_t lasting_keeps = 0;            // of them, those that unkeep() does not undo
  uint32_t writers = 0;                  // running operators that write it: they outlive its death
  bool dead = false;                     // it died while one of them ran
  bool exposed = false;    // its memory is shared with others, who may write it unseen
  bool in_place = false;   // one of them makes its content the next version, where it is
  bool contended = false;  // several of them ran at once: there is no telling what was made how
};
static_assert(sizeof(Storage) == 64, "one cache line");

// The sets of evicted values adjacent to a value, by any node of each. Sets unite and change their
// sums all the time, and a node still finds its set. The rest of the array is nodes of no set, so
// that all of it can be summed.
struct AdjacentSets {
  static constexpr int8_t kMost = 6;
  static constexpr int8_t kMany = kMost + 1;  // too many to list: the graph has to be walked

  int8_t count = 0;
  int32_t nodes[kMost] = {};
};

// Blocks are read by searches only, and to find one takes a while: what operators change of them is
// put on the map before a search.
enum Stale : uint8_t {
  kStaleAccess = 1,  // it was used
  kStaleCost = 2,    // a set adjacent to it has changed
  kStaleSets = 4,    // so may have which sets are adjacent, or it can leave from now on
};

// Between two operators torch and the driver run code enough to empty the fast caches, so what
// counts is how many lines of a value an operator touches.
struct alignas(64) Value {
  // What bringing a score up to date reads, in one cache line.
  Cost cost = 0;          // of its recipe
  AdjacentSets adjacent;  // sets of evicted values that its score counts
  static constexpr int32_t kNoSet = -1;
  static constexpr int32_t kUntracked = -2;
  int32_t neighbourhood = kNoSet;  // its node in Neighbourhoods while it is evicted; kUntracked: it
                                   // belongs to none; below, it has none yet, but a place in the
                                   // list of those that are pending
  Bytes offset = Arena::kNowhere;
  double last_access = 0;          // clock of the last use
  uint8_t stale = 0;               // what its block does not know yet: see Stale
  bool is_candidate = false;       // its block has a score: a window may contain it
  bool gradient : 1 = false;       // a root, but while it is being accumulated it may move
  bool made_quietly : 1 = false;   // a root, because it was made in a quiet step
  bool arriving : 1 = false;       // it has a block, which its copy is still on the way to
  bool received : 1 = false;       // a root, because a collective wrote it
  bool made_in_backward = false;   // moved rather than evicted
  bool dead_and_unneeded = false;  // evicted, no storage's content, and nothing that is evicted is
                                   // recomputed from it
  uint8_t num_left_out = 0;        // such values made from it that its score does not count, at
                                   // most; it stops where they are too many
  bool undefined = false;          // a root, because its bytes are any, for somebody to write: who
                                   // has its address may do so unseen
  HostState on_host = HostState::kNever;

  // With that one, what an operator that reads or makes it touches.
  Storage* storage = nullptr;              // null once the storage died or was written again
  Recipe* recipe = nullptr;                // null: a root, or a temporary of the running operator
  Edge* users = nullptr;                   // inputs of live recipes that read it
  Value* previous_recomputable = nullptr;  // list of the values of live storages with a recipe
  Value* next_recomputable = nullptr;
  Arena* arena = nullptr;  // where its block lies: the arena, or an extent of the small area;
                           // null for external memory
  Bytes bytes = 0;         // size of its block, resident or not
  int32_t locks = 0;
  int32_t loose_locks = 0;  // of them, those of an operator that lets go of what dies
  int32_t lock_index = -1;  // its place in the graph's list of locked values

  // The rest.
  int32_t output_index = 0;     // its place in recipe->outputs
  int32_t item = -1;            // its number in the step program, of the step in which it was made
  int32_t id = 0;               // slot in the graph's table; reused
  void* external = nullptr;     // address, when it is not the arena's
  int64_t serial = 0;           // unique, in order of creation
  int64_t step = 0;             // step in which it was made
  int64_t mark = 0;             // last traversal that saw it
  int64_t optimizer_step = -1;  // a root: the step whose optimizer has written it last

  bool is_resident() const { return offset != Arena::kNowhere; }
  // Whether an operator may use it as it is.
  bool is_ready() const { return is_resident() && !arriving; }
  bool is_root() const { return recipe == nullptr; }
  bool is_attached() const { return storage != nullptr; }
  bool is_kept() const { return storage != nullptr && storage->keeps > 0; }

  // Whether its bytes are in main memory too, as they are.
  bool is_saved() const { return on_host == HostState::kSaved; }
  // Whether they could be: it may leave by a copy.
  bool can_be_saved() const { return on_host >= HostState::kPossible; }
  // Whether its bytes could be brought back now: by its recipe, or by its copy.
  bool has_way_back() const { return recipe != nullptr || is_saved(); }
  // Whether a search looks at it, if nothing keeps it.
  bool may_leave() const { return recipe != nullptr || can_be_saved(); }
  // Whether its block may be taken from it, once nothing has it locked.
  bool can_leave() const { return may_leave() && is_ready() && !is_kept(); }
  // A root for good: neither the end of a quiet step nor a write gives it a recipe.
  bool is_lasting_root() const { return is_root() && !made_quietly && !undefined; }
  // Such a one that neither leaves nor moves: somebody may have its address.
  bool stays() const { return is_lasting_root() && !gradient && on_host == HostState::kNever; }
  // Its way back is to save its bytes, which has not happened yet.
  bool is_unsaved() const;
  // What is written becomes another value, and this one is brought back if need be.
  bool is_version() const { return !is_root() && !is_unsaved(); }

  bool is_evicted() const { return neighbourhood != kNoSet; }
  bool is_in_set() const { return neighbourhood >= 0; }
  void set_pending_join(size_t place) {
    neighbourhood = kUntracked - 1 - static_cast<int32_t>(place);
  }
  size_t pending_join() const { return static_cast<size_t>(kUntracked - 1 - neighbourhood); }
};

}  // namespace coop

#include "core/model/recipe.h"  // IWYU pragma: export
