// What a policy does, as named switches: the one place where `coop`, `coop-paper`, `dtr` and `dte`
// differ. Variants are compared by turning single switches off (docs/decisions/0004).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coop {

struct PolicyOptions {
  enum class Search : uint8_t {
    kWindow,                // Coop: the cheapest consecutive blocks with room for the request
    kValue,                 // DTR: the cheapest value, one at a time, until the request fits
    kValueAndFreeNeighbour  // DTE: the same; free bytes beside a value count as its own
  };

  Search search = Search::kWindow;
  // A window's bytes beyond those asked for are worth something: the next request finds them free.
  bool count_excess = true;
  // A search remembers the windows besides the cheapest one (decision 0005).
  bool remember_runners_up = true;
  // Where every window is expensive, a cost is capped at a multiple of the value's own.
  bool cap_costs = true;
  // A window moves what is more expensive than itself instead of evicting it.
  bool move_expensive = true;
  // What a backward pass made is moved, not evicted, while anything else can be.
  bool protect_backward = true;
  // What is dead and unneeded does not count for what it was made from.
  bool discount_unneeded = true;
  // What is dead stays while something that was evicted is made from it.
  bool keep_needed = true;
  // Evicted values join their sets as they go, where there are too many to join before a search.
  bool join_early = true;
  // An operator that does not fit is tried again: its inputs are moved together, ...
  bool retry_operators = true;
  // ... and so is a replay.
  bool retry_replays = true;
  // For both, roots that only replays read are moved too.
  bool move_dead_roots = true;
  // Gradients are moved together before an optimizer makes its state, ...
  bool gather_gradients = true;
  // ... and beside what stays when they are stored.
  bool move_gradients_aside = true;

  // Steps that repeat are scheduled, and schedules are followed.
  bool foresight = true;

  static PolicyOptions coop() { return {}; }
  static PolicyOptions coop_as_published();
  static PolicyOptions dtr();
  static PolicyOptions dte();
  // By the name that users know; throws std::invalid_argument.
  static PolicyOptions named(const std::string& name);

  bool is_window() const { return search == Search::kWindow; }
  // One value at a time: what only makes sense for windows is off too.
  PolicyOptions without_window() const;
  // With one switch off, by its name; throws std::invalid_argument.
  PolicyOptions without(std::string_view name) const;
  static std::vector<std::string> names();
};

}  // namespace coop
