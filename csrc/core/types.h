// The words of the core, in one place. See docs/architecture.md for the glossary.
//
//   arena    one contiguous region of `budget` bytes; addresses are offsets into it
//   block    an address range of the arena: free, or held by one value
//   storage  what tensors and their views share; its identity outlives its bytes
//   value    immutable content of a storage between two writes
//   recipe   how a value is made again: an operator with its input values and its cost
//   window   consecutive blocks, none of them a barrier, whose bytes cover a request
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/policy/options.h"

namespace coop {

using Bytes = int64_t;

// Costs and the clock are whole nanoseconds kept in a double: exact up to 2^53, and the score of
// a block needs no conversion.
using Cost = double;

// Which end of the arena a value grows from.
enum class Side : uint8_t { kLeft, kRight };

// What runs, and who asked for it, by the host's numbers; for events.
struct Origin {
  int32_t op = 0;       // -1: none
  uint16_t source = 0;  // 0: not known
};

// The link to main memory.
struct LinkProfile {
  double out_bytes_per_ns = 25;
  double in_bytes_per_ns = 25;
  Cost latency_ns = 10000;
};

struct Config {
  Bytes budget = 0;
  Bytes alignment = 64;
  Bytes small_bytes = 10 * 1024;  // values up to this size live in the small area
  PolicyOptions policy;
  bool partition = true;       // cheap and expensive values at opposite ends
  bool inplace = true;         // recomputable in-place; off: copy on write
  int32_t quiet_after = 0;     // steps in a row without a search, after which operators get no
                               // recipes until there is one; 0: never. Needs a host that saves.
  bool in_background = false;  // schedules are made on a thread of their own; else at once, so that
                               // decisions are the same in every run
  Bytes host_bytes = 0;        // of main memory, for copies of values that leave; 0: none
  LinkProfile link;
};

// What an allocation that cannot be satisfied knows (Rule 15).
struct Shortage {
  // A block that no window may contain.
  struct Held {
    Bytes bytes = 0;
    const char* as = "";           // what it is: see Space::shortage
    const void* handle = nullptr;  // the host's object, if it has one
    int64_t serial = 0;            // of its value
  };
  static constexpr size_t kMostLargest = 16;

  Bytes wanted = 0;
  Bytes budget = 0;
  Bytes held = 0;
  Bytes largest_window = 0;     // the most consecutive bytes that eviction could free
  Bytes sufficient_budget = 0;  // a budget with which this very request would have passed
  Bytes root_bytes = 0;         // roots: parameters, gradients, optimizer state, inputs
  Bytes kept_bytes = 0;         // kept by the user, or because replay is not understood
  Bytes locked_bytes = 0;       // in use by the operator, or by the replays it needs
  Bytes temporary_bytes = 0;    // workspaces and results of the running operator
  Bytes refused_bytes = 0;      // of the roots, those for whose copies there was no room
  Bytes host_bytes = 0;         // of main memory, for copies
  std::vector<std::pair<std::string, Bytes>> kept;  // kept bytes by reason
  std::vector<Held> largest;                        // first of what cannot be evicted
};

class OutOfBudget : public std::runtime_error {
 public:
  explicit OutOfBudget(const Shortage& shortage);
  Shortage shortage;
  std::string replaying;  // the operator that was being replayed, if any
};

struct Stats {
  Bytes budget = 0;
  Bytes held = 0;
  Bytes peak = 0;
  Bytes needed = 0;  // the smallest budget in which nothing had to be evicted: see needed.h
  bool needed_is_estimate = false;
  Bytes free = 0;
  Bytes largest_free = 0;
  int64_t num_operators = 0;
  int64_t num_replays = 0;
  int64_t num_evictions = 0;
  Bytes evicted_bytes = 0;
  int64_t num_searches = 0;
  int64_t search_ns = 0;
  int64_t searched_blocks = 0;
  int64_t num_forced = 0;        // allocations that needed an eviction
  double fragmentation_sum = 0;  // over forced allocations: free bytes / budget
  int64_t num_copies = 0;        // private copies and copies on write
  Bytes copied_bytes = 0;
  int64_t num_retries = 0;  // operators tried again as the last resort
  Bytes moved_bytes = 0;    // for them
  int64_t num_saves = 0;    // evicted values whose bytes are kept outside
  Bytes saved_bytes = 0;
  int64_t num_host_saves = 0;  // copies to main memory
  Bytes host_saved_bytes = 0;
  int64_t num_host_loads = 0;  // and back
  Bytes host_loaded_bytes = 0;
  int64_t num_host_refusals = 0;  // for which there was no room, or that failed
  Cost host_wait = 0;             // time waited for copies, as the link is modelled
  Bytes host_held = 0;            // of main memory
  Bytes host_peak = 0;
  Bytes host_bytes = 0;  // its budget
  int64_t num_steps = 0;
  int64_t num_schedules = 0;  // that were made
  int64_t num_followed = 0;   // steps that went as foreseen to their end
  int64_t num_left = 0;       // steps in which a schedule was left
  Cost compute_cost = 0;      // operators the program asked for
  Cost replay_cost = 0;       // operators run again
  int64_t num_recipes = 0;
  int64_t num_values = 0;
  int64_t num_blocks = 0;
};

}  // namespace coop
