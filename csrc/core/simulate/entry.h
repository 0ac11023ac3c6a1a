// What the core is told, as typed entries. The engine's recorder makes them, coop/trace reads them
// from JSON lines; the simulator applies them, JsonLines writes them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "core/types.h"

namespace coop {

// Python takes the numbers from csrc/adapter/bind/bind_kinds.cc.
enum class EntryKind : uint8_t {
  kOperator = 0,        // ran from begin to commit: Trace::operators[operator_index]
  kRoot = 1,            // storage, bytes: was allocated outside of any operator
  kFree = 2,            // storage: its last tensor is gone
  kKeep = 3,            // storage: not to be evicted
  kUnkeep = 4,          // storage
  kEvict = 5,           // storage
  kMaterialize = 6,     // storage
  kBeginStep = 7,       // an optimizer starts to write
  kEndStep = 8,         // and has ended: a boundary
  kGradient = 9,        // storage: was stored as a gradient
  kExternal = 10,       // storage, bytes: memory that is not the arena's
  kExpose = 11,         // storage: others share its memory from now on
  kEndStepInside = 12,  // an optimizer has ended inside a backward pass
  kUnseenWrite = 13,    // storage: is about to be written without an operator
  kLeaf = 14,           // storage: a leaf whose gradient was stored
  kUndefine = 15,       // storage: its memory was just taken, for somebody to write
  kGiveBack = 16,       // storage: its memory is about to be given back, though it lives on
};

struct Entry {
  EntryKind kind;
  int64_t storage = 0;
  Bytes bytes = 0;
  int32_t line = 0;  // for messages
  int32_t operator_index = 0;
};

// One thing that happens in an operator's memory, in order.
struct MemoryStep {
  enum class Kind : uint8_t { kOutput, kTemporary, kFree, kRoot } kind;
  int64_t argument;  // index of the output; bytes of the temporary; index of the temporary; of a
                     // root
};

// An operator: what it reads, makes and writes, by numbers of storages, and what it costs.
struct OperatorEntry {
  int32_t op = 0;  // number of its name, in a trace
  Cost cost = 0;
  Side side = Side::kRight;
  bool replayable = true;
  bool undefined = false;  // its outputs are any memory, for somebody to write
  bool keep_old = false;   // a replay needs the old bytes of the roots it writes
  // For another device's price.
  double flops = 0;
  double moved_bytes = 0;
  bool half = false;
  bool backward = true;         // it may run in a backward pass, or in an optimizer
  std::vector<int64_t> inputs;  // written ones included
  std::vector<int64_t> outputs;
  std::vector<Bytes> output_bytes;
  std::vector<int64_t> writes;      // a subset of the inputs
  std::vector<int64_t> overwrites;  // all bytes written, none read
  std::vector<int32_t> make_roots;  // indices of writes, then overwrites, that are made roots first
  std::vector<MemoryStep> memory;   // empty: the outputs in order
  std::vector<std::pair<int64_t, Bytes>> roots;  // made for others: storages and sizes

  // What `keep_old` is where nothing else is known.
  bool usually_keeps_old() const { return !outputs.empty() && replayable; }
};

// As docs/trace-format.md calls them; null: there is none of that number.
const char* name_of(EntryKind kind);
const char* name_of(MemoryStep::Kind kind);

// Whoever is told of entries as they are made. Sizes are as the core is asked for them.
class EntrySink {
 public:
  virtual ~EntrySink() = default;
  virtual void add(const Entry& entry) = 0;  // any but an operator
  // `source` is the line of the user's program; empty: not known.
  virtual void add(const OperatorEntry& entry, const std::string& name,
                   const std::string& source) = 0;
};

struct Trace {
  std::vector<Entry> entries;
  std::deque<OperatorEntry> operators;  // recipes point at them, so they must not move
  bool tells_backward = false;          // some are said not to be part of a backward pass
};

}  // namespace coop
