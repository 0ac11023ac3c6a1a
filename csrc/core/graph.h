// Storages, values and records: what is known of how the content of memory came to be.
//
//   Storage --value--> Value (the current version) --record--> Record --inputs--> Value ...
//
// A value exists while it is the content of a live storage, or a live record reads it, or it is
// locked. A record exists while one of its outputs does. Records keep values alive, not bytes
// (Rule 3); only a root that is read by a record keeps its bytes.
#pragma once

#include "core/arena.h"
#include "core/fixed_array.h"
#include "core/types.h"

namespace coop {

class Core;
struct Record;
struct Value;

// A storage of the outside world that is alive: some tensor, or the running operator, holds it.
struct alignas(64) Storage {
  Value* value = nullptr;  // current content; never null
  Core* core = nullptr;
  void* handle = nullptr;  // the host's own object, null until the host has seen it
  Bytes bytes = 0;         // as asked for
  const char* pin_reason = nullptr;
  const char* lasting_reason = nullptr;  // of the pins that nobody can undo
  uint32_t pins = 0;
  uint32_t lasting_pins = 0;  // so many of them
  uint32_t writers = 0;       // running operators that write it: they outlive its death
  bool dead = false;          // it died while one of them ran
  bool exposed = false;       // its memory is shared with others, who may write it unseen
  bool in_place = false;      // one of them makes its content the next version, where it is
  bool contended = false;     // several of them ran at once: there is no telling what was made how
};
static_assert(sizeof(Storage) == 64, "one cache line");

// One input of one record, linked into the list of all records that read the same value.
struct Edge {
  Value* value;
  Record* record;
  Edge* previous;
  Edge* next;
};

// The evicted neighbourhoods beside a value, by any node of each. Sets unite and change their sums
// all the time, and a node still finds its set. The rest of the array is nodes of no set, so that
// all of it can be summed.
struct BesideSets {
  static constexpr int8_t kMost = 6;
  static constexpr int8_t kMany = kMost + 1;  // too many to list: the graph has to be walked

  int8_t count = 0;
  int32_t nodes[kMost] = {};
};

// Blocks are read by searches only, and to find one takes a while: what operators change of them is
// put on the map before a search.
enum Stale : uint8_t {
  kStaleAccess = 1,  // it was used
  kStaleCost = 2,    // a set beside it has changed
  kStaleSets = 4,    // so may have which sets are beside it, or it can be evicted from now on
};

// Between two operators torch and the driver run code enough to empty the fast caches, so what
// counts is how many lines of a value an operator touches.
struct alignas(64) Value {
  // What bringing a score up to date reads, in one cache line.
  Cost cost = 0;      // of its record
  BesideSets beside;  // evicted neighbourhoods that its score counts
  static constexpr int32_t kNoSet = -1;
  static constexpr int32_t kApart = -2;
  int32_t neighbourhood = kNoSet;  // its node in Neighbourhoods while it is evicted; kApart: it
                                   // belongs to none; below, it has none yet, but a place in
                                   // Core's list
  Bytes offset = Arena::kNowhere;
  double last_access = 0;     // clock of the last use
  uint8_t stale = 0;          // what its block does not know yet: see Stale
  bool is_candidate = false;  // its block has a score: a window may contain it
  bool gradient = false;      // a root, but while it is being accumulated it may move
  bool late = false;          // made in a backward pass: moved rather than evicted
  bool dormant = false;       // evicted, but nothing that is evicted is recomputed from it, and it
                              // is no storage's content
  uint8_t num_left_out = 0;   // dormant values made from it that its score does not count, at most;
                              // it stops where they are too many
  bool unrecorded = false;    // a root, because it was made in a quiet step

  // With that one, what an operator that reads or makes it touches.
  Storage* storage = nullptr;          // null once the storage died or was written again
  Record* record = nullptr;            // null: a root, or a temporary of the running operator
  Edge* users = nullptr;               // inputs of live records that read it
  Value* previous_recorded = nullptr;  // list of the values of live storages that have a record
  Value* next_recorded = nullptr;
  Arena* arena = nullptr;  // where its block lies: the arena, or an extent of the small area;
                           // null for external memory
  Bytes bytes = 0;         // size of its block, resident or not
  int32_t locks = 0;
  int32_t lock_index = -1;  // its place in Core's list of locked values

  // The rest.
  int32_t output_index = 0;  // its place in record->outputs
  int32_t id = 0;            // slot in Core's table; reused
  void* external = nullptr;  // address, when it is not the arena's
  int64_t serial = 0;        // unique, in order of creation
  int64_t step = 0;          // step in which it was made
  int64_t mark = 0;          // last traversal that saw it

  bool is_resident() const { return offset != Arena::kNowhere; }
  bool is_root() const { return record == nullptr; }
  // A root that no end of a quiet step makes evictable.
  bool stays() const { return is_root() && !unrecorded; }
  // With a record, but not of an operator: its bytes are not saved yet.
  bool is_unsaved() const;
  // What is written becomes another value, and this one is brought back if need be.
  bool is_version() const { return !is_root() && !is_unsaved(); }
  bool is_absent() const { return neighbourhood != kNoSet; }
  void set_unjoined(size_t place) { neighbourhood = kApart - 1 - static_cast<int32_t>(place); }
  size_t unjoined() const { return static_cast<size_t>(kApart - 1 - neighbourhood); }
  bool is_attached() const { return storage != nullptr; }
  bool is_evictable() const {
    return record != nullptr && is_resident() && (storage == nullptr || storage->pins == 0);
  }
};

// How a set of values was made. The host derives from it and adds the operator and its frozen
// arguments; or it is one value's bytes, outside of the arena. First what its end touches, if it is
// never replayed.
struct alignas(64) Record {
  enum class Kind : uint8_t {
    kOperator,
    kUnsaved,  // of a value that is resident: its bytes are saved when it is evicted
    kSaved,
  };

  virtual ~Record() = default;

  Record* previous = nullptr;  // all live records in order of creation
  Record* next = nullptr;
  int32_t num_live_outputs = 0;
  Origin origin;
  bool late = false;  // the operator ran in a backward pass
  Kind kind = Kind::kOperator;
  FixedArray<Value*, 4> outputs;  // null where that output died, or is a root
  FixedArray<Edge, 8> inputs;
  Cost cost = 0;
  int64_t step = 0;
};

inline bool Value::is_unsaved() const {
  return record != nullptr && record->kind == Record::Kind::kUnsaved;
}

}  // namespace coop
