// A policy looks at the blocks and what they cost, and decides. It changes nothing: the plan that
// it returns is carried out by the evictor. To add one: docs/extending.md.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/policy/copy_cost.h"
#include "core/policy/options.h"
#include "core/policy/runners_up.h"
#include "core/policy/scores.h"
#include "core/policy/search.h"
#include "core/policy/window.h"

namespace coop {

// What to do for a request: evict some values of a window, and move the others to its low end.
struct Plan {
  Window window;              // empty: nothing helps
  std::vector<Value*> evict;  // in order of their addresses
  std::vector<Value*> move;   // likewise
  int64_t num_looked = 0;     // blocks that were looked at again, after a search for a window
  std::optional<RunnersUp> runners_up;  // other windows, if the search remembers any

  bool empty() const { return window.empty(); }
};

// What a policy may look at. The scores are up to date.
struct Situation {
  Bytes bytes;  // that have to fit
  double clock;
  bool may_move;  // whether the host allows to move values now
  bool foreseen;  // a schedule is followed: what is still there is wanted
  const BlockMap& blocks;
  const Scores& scores;
  const CopyCost& copy_cost;
  const std::vector<BlockMap::Position>& locked;  // blocks with a cost that are locked now
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Plan choose(const Situation& now, SearchMemory& memory) const = 0;
};

std::unique_ptr<const Policy> make_policy(const PolicyOptions& options);

// Lists what the plan's window evicts, and what it moves, which is what costs less than nothing.
void list_values(const SearchCosts& costs, bool may_move, Plan& plan);

}  // namespace coop
