// What it would cost to evict a value: its own cost, and that of the sets of evicted values
// adjacent to it. Costs change with every eviction and every replay, and are read by searches only,
// so they are put on the blocks before a search (bring_up_to_date).
//
// Invariants:
//   a value that cannot leave is a barrier at all times; that it can is told before a search
//   up to date, a block costs what the graph says (checked then, in the debug build)
//   an evicted value has a node in a set, or is pending to join one, or is untracked (made in a
//   backward pass: it is recomputed in the last resort only; or saved: it comes back by itself), so
//   that no score counts it
//
// Note [Scores]
// score(block) = cost / staleness in fixed point (2^32, ratio clamped to 2^20), so a window's sum
// is exact and ties repeat. Staleness is in nanoseconds of operator cost since the last use. cost =
// the recipe's own + the cost of the distinct sets of evicted values adjacent to it; or what a copy
// in main memory costs there and back, where that is less.
//
// An evicted value joins its set before the next search: many are gone by then, and a set that they
// had held together would not come apart. A value that is dead and unneeded counts for what was
// made from it; for what it is made from it does not, if it is far more expensive per byte and
// there are few such (decision 0004, 7).
//
// Every value lists the sets adjacent to it. A set that changes is listed, and before the next
// search the costs of what is adjacent to such sets are summed anew; all costs in one pass, where
// nearly all sets change.
#pragma once

#include <algorithm>
#include <vector>

#include "core/journal.h"
#include "core/model/graph.h"
#include "core/policy/link.h"
#include "core/policy/neighbourhood.h"
#include "core/policy/options.h"
#include "core/space/space.h"

namespace coop {

class Scores {
 public:
  // With fewer blocks a search takes less time than it takes to prepare for it.
  static constexpr int64_t kManyBlocks = 512;

  Scores(const PolicyOptions& options, const Link& link, Graph& graph, Space& space,
         Journal& journal)
      : options_(options),
        link_(link),
        graph_(graph),
        space_(space),
        journal_(journal),
        neighbourhoods_(graph.pages()) {}
  Scores(const Scores&) = delete;
  Scores& operator=(const Scores&) = delete;

  // --- what the others tell it
  // The value has no bytes from now on, but has a way back.
  void on_evicted(Value* value);
  // It has bytes again, or is about to be destroyed.
  void on_restored(Value* value);
  // An operator used it.
  void touch(Value* value) {
    value->last_access = journal_.clock;
    // No search looks at what stays, and what gets a recipe is marked then.
    if (value->may_leave() && space_.has(value)) mark_stale(value, kStaleAccess);
  }
  // It was just made: all that it was made from is resident, so no set is adjacent to it yet.
  void add_candidate(Value* value) {
    if (value->can_leave()) mark_stale(value, kStaleCost);
  }
  // Whether it may leave, or at what cost, has changed.
  void refresh(Value* value);
  // Its block lies elsewhere.
  void on_moved(Value* value) {
    value->is_candidate = false;
    mark_stale(value, kStaleAccess);
    refresh(value);
  }
  // What a backward pass made and is resident is evicted like everything else from now on. False
  // when there is none.
  bool stop_protecting_backward();

  // --- before a search
  // Evicted values have their sets.
  void join_pending();
  // And barriers are known, and what the blocks of marked values cost, but not adjacent ones.
  void update_marked_blocks();
  // And so is what every block costs.
  void bring_up_to_date();

  // --- what a search asks
  // As the graph says now; its block need not be up to date, but evicted values have their sets.
  Cost cost_of(Value* value) const;
  // Whether there is room for copies in main memory.
  bool has_copies() const { return link_.is_on(); }
  // Whether a copy in main memory is the cheaper way back, or the only one.
  bool prefers_copy(Value* value) const;
  // The same by walking the graph for the sets; and for everything (see neighbours.h), for tests.
  Cost sets_cost_of(const Value* value) const;
  Cost exact_cost_of(const Value* value) const;
  // To bring back several values, a set once, whatever else is adjacent to it: begin_sum(), and
  // then each is added.
  void begin_sum() const { neighbourhoods_.begin_round(); }
  Cost add_to_sum(Cost sum, const Value* value) const;
  // Of a block that is moved, not evicted. To copy it takes no longer than it took to make it.
  static Cost moving_cost(const Value* value) { return -std::max(value->cost, 1.0); }

 private:
  void mark_stale(Value* value, Stale what) {
    if (value->stale == 0) {
      if (stale_values_.size() == stale_values_.capacity()) trim_stale();
      stale_values_.push_back(value);
    }
    value->stale |= what;
  }
  void trim_stale();
  void trim_pending();
  void join(Value* value);
  void wake(Value* value);
  void add_adjacent(Value* value, int32_t node);
  void find_adjacent(AdjacentSets& adjacent) const;
  void set_changed(int32_t node);
  bool mark_adjacent_to_changed();
  void rescore_blocks();
  Cost candidate_cost(Value* value, uint8_t stale);
  // What is recomputed for one value serves others too; a copy serves it alone. So for what has
  // both ways back a copy has to be cheaper by this.
  static constexpr Cost kSharing = 4;
  // The cheaper way back, where recomputing the value costs so much.
  Cost cheaper(const Value* value, Cost recompute) const {
    return value->can_be_saved() ? std::min(recompute, kSharing * link_.round_trip(value))
                                 : recompute;
  }
  Cost recompute_cost(Value* value) const {
    return (value->stale & kStaleSets) != 0 ? closure_cost(value) : score_cost(value);
  }
  Cost closure_cost(const Value* value) const;
  Cost score_cost(Value* value) const;
  Cost adjacent_sets_cost(const Value* value) const;
  Cost unseen_cost(int32_t node) const;
  bool are_right() const;

  const PolicyOptions& options_;
  const Link& link_;
  Graph& graph_;
  Space& space_;
  Journal& journal_;
  Neighbourhoods neighbourhoods_;
  std::vector<Value*> stale_values_;   // may contain recycled values
  std::vector<int32_t> changed_sets_;  // by any node, since the last search
  bool all_sets_changed_ = false;      // too many to list
  std::vector<Value*> pending_;        // evicted since the last search; null where one came back
  size_t num_joined_ = 0;              // of them, the first ones
};

}  // namespace coop
