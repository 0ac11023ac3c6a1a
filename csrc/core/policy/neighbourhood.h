// The evicted neighbourhood of a value: the evicted values that would have to be recomputed with
// it, or because of it. Kept as disjoint sets (union-find) of connected evicted values with the sum
// of their costs, as in DTR's h_eq. Leaving a set subtracts the cost but does not split it: the sum
// is an over-estimate after that (docs/results/2026-11-18-core.md has the measured difference).
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "core/prefetch.h"
#include "core/types.h"

namespace coop {

struct Value;

class Neighbourhoods {
 public:
  static constexpr int32_t kNone = 0;  // a node of a set that costs nothing and stays alone

  explicit Neighbourhoods(std::pmr::memory_resource* memory) : nodes_(memory), costs_(memory) {
    add(nullptr, 0);
  }

  // A new set of one member; returns its node.
  int32_t add(const Value* member, Cost cost);
  // The last member that leaves a set takes its nodes along.
  void remove(int32_t node, Cost cost);
  void unite(int32_t a, int32_t b);
  // Shortens the way to the root for whoever asks next; no set changes by it.
  int32_t find(int32_t node) const {
    while (nodes_[node].parent != node) {
      nodes_[node].parent = nodes_[nodes_[node].parent].parent;
      node = nodes_[node].parent;
    }
    return node;
  }
  // Not a number for a node that is not its set's root any more: who remembers several nodes sums
  // their costs, and finds the roots only if that is none.
  Cost cost(int32_t node) const { return costs_[node]; }
  // Asks for all costs at once, for a pass that needs most of them.
  void prefetch_costs() const { prefetch_range(costs_.data(), costs_.size() * sizeof(Cost)); }
  int32_t num_members(int32_t root) const { return nodes_[root].num_members; }

  // Calls f(member, or null where one has left) for the nodes of the set, until that is false.
  // Whether it never was.
  template <typename F>
  bool all_members(int32_t root, F&& f) const {
    if (nodes_[root].num_members == 0) return true;  // recycled: its ring may be another's now
    int32_t node = root;
    do {
      if (!f(nodes_[node].member)) return false;
      node = nodes_[node].next;
    } while (node != root);
    return true;
  }

  // True the first time `root` is seen in the current round; used to sum over distinct sets.
  void begin_round() const {
    if (++round_ > 0) return;
    for (Node& node : nodes_) node.round = 0;
    round_ = 1;
  }
  bool first_in_round(int32_t root) const;

  size_t num_nodes() const { return nodes_.size() - unused_.size() - 1; }

 private:
  struct Node {
    int32_t parent = 0;
    int32_t num_members = 0;  // of the set, at its root
    int32_t next = 0;         // ring of all nodes of the set, so that an empty set can be recycled
    uint32_t round = 0;
    const Value* member = nullptr;  // null when it has left
  };

  mutable std::pmr::vector<Node> nodes_;
  std::pmr::vector<Cost> costs_;  // of the nodes' sets; on their own, so that few lines hold them
  std::vector<int32_t> unused_;
  mutable uint32_t round_ = 0;
};

}  // namespace coop
