#include "core/policy/neighbourhood.h"

#include <limits>
#include <utility>

namespace coop {

int32_t Neighbourhoods::add(const Value* member, Cost cost) {
  int32_t node;
  if (unused_.empty()) {
    node = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
    costs_.emplace_back();
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  Node& fresh = nodes_[node];
  fresh.parent = node;
  fresh.next = node;
  fresh.num_members = 1;
  fresh.member = member;
  costs_[node] = cost;
  return node;
}

void Neighbourhoods::remove(int32_t node, Cost cost) {
  nodes_[node].member = nullptr;
  const int32_t root = find(node);
  costs_[root] -= cost;
  if (--nodes_[root].num_members > 0) return;
  int32_t member = root;
  do {
    const int32_t next = nodes_[member].next;
    unused_.push_back(member);
    member = next;
  } while (member != root);
}

void Neighbourhoods::unite(int32_t a, int32_t b) {
  a = find(a);
  b = find(b);
  if (a == b) return;
  if (nodes_[a].num_members < nodes_[b].num_members) std::swap(a, b);
  Node& into = nodes_[a];
  Node& from = nodes_[b];
  from.parent = a;
  costs_[a] += std::exchange(costs_[b], std::numeric_limits<Cost>::quiet_NaN());
  into.num_members += from.num_members;
  std::swap(into.next, from.next);
}

bool Neighbourhoods::first_in_round(int32_t root) const {
  if (nodes_[root].round == round_) return false;
  nodes_[root].round = round_;
  return true;
}

}  // namespace coop
