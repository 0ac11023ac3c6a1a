#include "core/policy/scores.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/policy/neighbours.h"

namespace coop {

// --- evicted values and their sets

// It joins a set before the next search: many are gone by then, and a set that they had held
// together would not come apart again.
void Scores::on_evicted(Value* value) {
  COOP_DEBUG_ASSERT(value->has_way_back() && !value->is_evicted());
  if (value->made_in_backward || value->is_saved()) {
    value->neighbourhood = Value::kUntracked;
    return;
  }
  if (pending_.size() > 2 * graph_.num_slots()) trim_pending();
  value->set_pending_join(pending_.size());
  pending_.push_back(value);
  // With thousands of blocks, while its neighbours are in the caches: thousands of values would
  // have to be joined before a search.
  constexpr size_t kRecent = 32;
  if (!options_.join_early || space_.blocks().size() < kManyBlocks) return;
  while (pending_.size() - num_joined_ > kRecent) join(pending_[num_joined_++]);
}

// A run that never searches must not collect them for ever.
void Scores::trim_pending() {
  std::fill_n(pending_.begin(), std::exchange(num_joined_, 0), nullptr);
  std::erase(pending_, nullptr);
  for (size_t i = 0; i < pending_.size(); ++i) pending_[i]->set_pending_join(i);
}

void Scores::join_pending() {
  while (num_joined_ < pending_.size()) join(pending_[num_joined_++]);
  pending_.clear();
  num_joined_ = 0;
}

void Scores::join(Value* value) {
  if (value == nullptr) return;
  const int32_t node = neighbourhoods_.add(value, value->cost);
  value->neighbourhood = node;
  // Whether it will be recomputed: for its own storage, or for what has been evicted.
  bool needed = value->storage != nullptr;
  for_each_result(value, [&](Value* result) {
    if (!result->is_in_set()) return add_adjacent(result, node);
    needed |= !result->dead_and_unneeded;
    neighbourhoods_.unite(node, result->neighbourhood);
  });
  value->dead_and_unneeded = options_.discount_unneeded && !needed;
  for_each_source(value, [&](Value* source) {
    if (source->is_in_set()) {
      if (needed && source->dead_and_unneeded) wake(source);
      neighbourhoods_.unite(node, source->neighbourhood);
    } else if (!is_left_out(value, source)) {
      add_adjacent(source, node);
    } else if (source->num_left_out >= kFewLeftOut) {
      source->num_left_out = kFewLeftOut + 1;
      mark_stale(source, kStaleSets);  // there may be too many
    } else {
      ++source->num_left_out;
    }
  });
  set_changed(node);
}

// Something that was made from it has been evicted: it is needed, as is what it is made from.
void Scores::wake(Value* value) {
  std::vector<Value*> waking{value};
  while (!waking.empty()) {
    Value* woken = waking.back();
    waking.pop_back();
    if (!std::exchange(woken->dead_and_unneeded, false)) continue;
    for_each_source(woken, [&](Value* source) {
      if (source->is_in_set()) {
        if (source->dead_and_unneeded) waking.push_back(source);
      } else if (source->num_left_out > kFewLeftOut) {
        mark_stale(source, kStaleSets);  // there may be few now
      } else {
        add_adjacent(source, woken->neighbourhood);  // the set is one that changes
      }
    });
  }
}

void Scores::on_restored(Value* value) {
  if (!value->is_in_set()) {
    if (value->neighbourhood != Value::kUntracked) pending_[value->pending_join()] = nullptr;
    value->neighbourhood = Value::kNoSet;
    refresh(value);
    return;
  }
  value->dead_and_unneeded = false;
  neighbourhoods_.remove(value->neighbourhood, value->cost);
  set_changed(std::exchange(value->neighbourhood, Value::kNoSet));
  // It may have been all that lay between them and its set.
  for_each_neighbour(value, [&](Value* neighbour) {
    if (neighbour->adjacent.count > 0) mark_stale(neighbour, kStaleSets);
  });
  refresh(value);
}

void Scores::add_adjacent(Value* value, int32_t node) {
  AdjacentSets& adjacent = value->adjacent;
  if (adjacent.count == AdjacentSets::kMany || value->made_in_backward || !value->can_leave()) {
    return;
  }
  const int32_t set = neighbourhoods_.find(node);
  for (int8_t i = 0; i < adjacent.count; ++i) {
    if (neighbourhoods_.find(adjacent.nodes[i]) == set) return;
  }
  if (adjacent.count == AdjacentSets::kMost) find_adjacent(adjacent);
  if (adjacent.count < AdjacentSets::kMost) adjacent.nodes[adjacent.count] = node;
  ++adjacent.count;
}

// The roots of the sets, each once: some may have become one.
void Scores::find_adjacent(AdjacentSets& adjacent) const {
  int32_t* end = adjacent.nodes;
  for (int8_t i = 0; i < adjacent.count; ++i) {
    const int32_t set = neighbourhoods_.find(adjacent.nodes[i]);
    if (std::find(adjacent.nodes, end, set) == end) *end++ = set;
  }
  adjacent.count = static_cast<int8_t>(end - adjacent.nodes);
  std::fill(end, std::end(adjacent.nodes), Neighbourhoods::kNone);
}

// --- what blocks know

// That it may not leave is told at once: no search must ever find it.
void Scores::refresh(Value* value) {
  if (!value->is_resident() || !space_.has(value)) return;
  if (value->can_leave()) {
    mark_stale(value, kStaleSets);
  } else if (value->is_candidate) {
    Arena& arena = space_.arena();
    arena.set_cost(arena.find(value->offset), kBarrier);
    value->is_candidate = false;
  }
}

// The list is about to grow. A run that never searches must not collect them for ever.
void Scores::trim_stale() {
  if (stale_values_.size() <= 2 * graph_.num_slots()) return;
  stale_values_.clear();
  graph_.for_each_slot([&](Value& value) {
    if (value.stale != 0) stale_values_.push_back(&value);
  });
}

bool Scores::stop_protecting_backward() {
  bool any = false;
  space_.for_each_block([&](const Block& block) {
    if (block.is_free() || !block.value->made_in_backward) return;
    block.value->made_in_backward = false;
    refresh(block.value);
    any = true;
  });
  return any;
}

void Scores::set_changed(int32_t node) {
  if (all_sets_changed_) return;
  changed_sets_.push_back(node);
  // They are listed for a search, which may never come.
  all_sets_changed_ = static_cast<int64_t>(changed_sets_.size()) > space_.blocks().size();
}

void Scores::bring_up_to_date() {
  join_pending();
  if (mark_adjacent_to_changed()) {
    update_marked_blocks();
  } else {
    rescore_blocks();
  }
  changed_sets_.clear();
  all_sets_changed_ = false;
  COOP_DEBUG_ASSERT(are_right());
}

// Marks the values adjacent to the sets that have changed. False when there is so much to look at
// that one pass over all blocks is less work.
bool Scores::mark_adjacent_to_changed() {
  if (all_sets_changed_) return false;
  int64_t most_looks = space_.blocks().size() / 2;
  constexpr int64_t kLooksPerMember = 3;  // itself and its neighbours, about
  int64_t num_members = 0;
  neighbourhoods_.begin_round();
  for (const int32_t node : changed_sets_) {
    const int32_t set = neighbourhoods_.find(node);
    if (neighbourhoods_.first_in_round(set)) num_members += neighbourhoods_.num_members(set);
    if (num_members * kLooksPerMember > most_looks) return false;
  }
  const size_t num_stale = stale_values_.size();
  neighbourhoods_.begin_round();
  for (const int32_t node : changed_sets_) {
    const int32_t set = neighbourhoods_.find(node);
    if (!neighbourhoods_.first_in_round(set)) continue;
    const bool all = neighbourhoods_.all_members(set, [&](const Value* member) {
      if (member != nullptr) {
        for_each_neighbour(member, [&](Value* neighbour) {
          --most_looks;
          if (neighbour->is_candidate) mark_stale(neighbour, kStaleCost);
        });
      }
      return --most_looks >= 0;
    });
    if (all) continue;
    // Unmarks those that this has added.
    while (stale_values_.size() > num_stale) {
      stale_values_.back()->stale = 0;
      stale_values_.pop_back();
    }
    return false;
  }
  return true;
}

void Scores::update_marked_blocks() {
  constexpr size_t kAhead = 4;
  Arena& arena = space_.arena();
  for (size_t i = 0; i < stale_values_.size(); ++i) {
    if (i + kAhead < stale_values_.size()) __builtin_prefetch(stale_values_[i + kAhead]);
    Value* value = stale_values_[i];
    const uint8_t stale = std::exchange(value->stale, 0);
    // What cannot leave is a barrier, whatever else is known of it.
    if (stale == 0 || !space_.has(value) || !value->can_leave()) continue;
    const BlockMap::Position position = arena.find(value->offset);
    arena.touch(position, value->last_access);
    if (stale != kStaleAccess) arena.set_cost(position, candidate_cost(value, stale));
  }
  stale_values_.clear();
}

// The same for all blocks, in their order.
void Scores::rescore_blocks() {
  neighbourhoods_.prefetch_costs();
  space_.arena().rescore([&](Value* value, Cost& cost, double& last_access) {
    const uint8_t stale = value->stale;
    if (stale != 0) {
      if (!value->can_leave()) return;
      last_access = value->last_access;
    }
    // What was merely used does not become a candidate by that.
    if ((stale & ~kStaleAccess) != 0) {
      cost = candidate_cost(value, stale);
    } else if (value->adjacent.count > 0 && cost != kBarrier && !value->made_in_backward) {
      cost = cheaper(value, score_cost(value));
    }
  });
  for (Value* value : stale_values_) value->stale = 0;
  stale_values_.clear();
}

// What the block of a value that can leave costs from now on.
Cost Scores::candidate_cost(Value* value, uint8_t stale) {
  value->is_candidate = true;
  if (value->made_in_backward) return moving_cost(value);
  if (value->is_root()) {
    value->adjacent = {};
    return link_.round_trip(value);
  }
  if ((stale & kStaleSets) != 0) {
    // Asks the graph anew.
    value->adjacent = {};
    const int num_left_out = for_each_counted(value, [&](Value* neighbour) {
      if (neighbour->is_in_set()) add_adjacent(value, neighbour->neighbourhood);
    });
    value->num_left_out = static_cast<uint8_t>(std::min(num_left_out, kFewLeftOut + 1));
  }
  return cheaper(value, score_cost(value));
}

// --- costs

Cost Scores::score_cost(Value* value) const {
  AdjacentSets& adjacent = value->adjacent;
  if (adjacent.count == AdjacentSets::kMany) return closure_cost(value);
  auto sum = [&] {
    Cost sum = value->cost;
    for (const int32_t node : adjacent.nodes) sum += neighbourhoods_.cost(node);
    return sum;
  };
  // Neither how many sets there are nor what they cost is predictable: nothing here branches on it.
  const Cost cost = sum();
  if (!std::isnan(cost)) [[likely]]
    return cost;
  find_adjacent(adjacent);
  return sum();
}

Cost Scores::cost_of(Value* value) const {
  if (value->made_in_backward) return -moving_cost(value);
  if (value->is_root()) return link_.round_trip(value);
  return cheaper(value, recompute_cost(value));
}

// The sets never say less than the graph does, but often far more: a window that has to go goes
// either way, so what it takes is found out.
bool Scores::prefers_copy(Value* value) const {
  if (!value->can_be_saved()) return false;
  if (value->is_root()) return true;
  const Cost copy = kSharing * link_.round_trip(value);
  if (recompute_cost(value) <= copy) return false;
  return exact_neighbourhood_cost(value, graph_.new_mark(), copy) > copy;
}

Cost Scores::sets_cost_of(const Value* value) const {
  if (value->is_root()) return link_.round_trip(value);
  return cheaper(value, closure_cost(value));
}

Cost Scores::closure_cost(const Value* value) const {
  neighbourhoods_.begin_round();
  return value->cost + adjacent_sets_cost(value);
}

Cost Scores::exact_cost_of(const Value* value) const {
  return exact_neighbourhood_cost(value, graph_.new_mark());
}

// Of the sets adjacent to it that were not seen in this round, as the graph says.
Cost Scores::adjacent_sets_cost(const Value* value) const {
  Cost sum = 0;
  for_each_counted(value, [&](Value* neighbour) {
    if (neighbour->is_in_set()) sum += unseen_cost(neighbour->neighbourhood);
  });
  return sum;
}

Cost Scores::unseen_cost(int32_t node) const {
  const int32_t set = neighbourhoods_.find(node);
  return neighbourhoods_.first_in_round(set) ? neighbourhoods_.cost(set) : 0;
}

Cost Scores::add_to_sum(Cost sum, const Value* value) const {
  if (value->is_root()) return sum + link_.round_trip(value);
  if (value->can_be_saved()) return sum + sets_cost_of(value);
  const AdjacentSets& adjacent = value->adjacent;
  sum += value->cost;
  if (adjacent.count == AdjacentSets::kMany) return sum + adjacent_sets_cost(value);
  for (int8_t i = 0; i < adjacent.count; ++i) sum += unseen_cost(adjacent.nodes[i]);
  return sum;
}

// What the sets listed with a value say is what the graph says.
bool Scores::are_right() const {
  bool right = true;
  space_.for_each_block([&](const Block& block) {
    if (block.is_free() || block.cost == kBarrier) return;
    const Value* value = block.value;
    right &= block.cost == (value->made_in_backward ? moving_cost(value) : sets_cost_of(value));
  });
  return right;
}

}  // namespace coop
