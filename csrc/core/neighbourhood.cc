#include "core/neighbourhood.h"

#include <utility>

namespace coop {

int32_t Neighbourhoods::add(Cost cost) {
  int32_t node;
  if (unused_.empty()) {
    node = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  Node& fresh = nodes_[node];
  fresh.parent = node;
  fresh.next = node;
  fresh.num_members = 1;
  fresh.cost = cost;
  fresh.border.clear();
  return node;
}

bool Neighbourhoods::remove(int32_t node, Cost cost) {
  const int32_t root = find(node);
  Node& set = nodes_[root];
  set.cost -= cost;
  if (--set.num_members > 0) return false;
  int32_t member = root;
  do {
    const int32_t next = nodes_[member].next;
    unused_.push_back(member);
    member = next;
  } while (member != root);
  return true;
}

void Neighbourhoods::unite(int32_t a, int32_t b) {
  a = find(a);
  b = find(b);
  if (a == b) return;
  if (nodes_[a].num_members < nodes_[b].num_members) std::swap(a, b);
  Node& into = nodes_[a];
  Node& from = nodes_[b];
  from.parent = a;
  into.cost += from.cost;
  into.num_members += from.num_members;
  std::swap(into.next, from.next);
  if (into.border.size() < from.border.size()) into.border.swap(from.border);
  into.border.insert(into.border.end(), from.border.begin(), from.border.end());
  from.border.clear();
}

int32_t Neighbourhoods::find(int32_t node) {
  while (nodes_[node].parent != node) {
    nodes_[node].parent = nodes_[nodes_[node].parent].parent;
    node = nodes_[node].parent;
  }
  return node;
}

bool Neighbourhoods::first_in_round(int32_t root) {
  if (nodes_[root].round == round_) return false;
  nodes_[root].round = round_;
  return true;
}

}  // namespace coop
