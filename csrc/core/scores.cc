// What it would cost to evict a value: evicted values join sets, and the blocks beside those are
// told before a search.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/core.h"

namespace coop {

namespace {

// Roots are never evicted, so they are nobody's neighbours.
template <typename F>
void for_each_source(const Value* value, F&& f) {
  if (value->record == nullptr) return;
  for (Edge& edge : value->record->inputs) {
    if (edge.value->record != nullptr) f(edge.value);
  }
}

template <typename F>
void for_each_result(const Value* value, F&& f) {
  for (Edge* edge = value->users; edge != nullptr; edge = edge->next) {
    for (Value* output : edge->record->outputs) {
      if (output != nullptr) f(output);
    }
  }
}

// Calls f(neighbour) for the values from which `value` is recomputed, and for those that are
// recomputed from it.
template <typename F>
void for_each_neighbour(const Value* value, F&& f) {
  for_each_source(value, f);
  for_each_result(value, f);
}

// A dormant value is recomputed only when something that was made from it has been evicted, and
// what is dearer to the byte than `source` will stay when that one goes.
bool is_left_out(const Value* value, const Value* source) {
  constexpr double kDearer = 2;
  return value->dormant && value->cost * static_cast<double>(source->bytes) >
                               kDearer * source->cost * static_cast<double>(value->bytes);
}

// Of more than so many that are left out one will be wanted: they count.
constexpr int kFew = 8;

// Calls f(neighbour) for those that a score counts. How many are left out, or would be.
template <typename F>
int for_each_counted(const Value* value, F&& f) {
  for_each_source(value, f);
  int num_left_out = 0;
  for_each_result(value, [&](Value* result) {
    if (is_left_out(result, value)) {
      ++num_left_out;
    } else {
      f(result);
    }
  });
  if (num_left_out > kFew) {
    for_each_result(value, [&](Value* result) {
      if (is_left_out(result, value)) f(result);
    });
  }
  return num_left_out;
}

}  // namespace

// The value has no bytes from now on, but can be recomputed. It joins a set before the next search:
// many are gone by then, and a set that they had held together would not come apart again. A late
// value is recomputed in the last resort only, so that nobody's score counts it.
void Core::absent(Value* value) {
  COOP_DEBUG_ASSERT(value->record != nullptr && !value->is_absent());
  if (value->late) {
    value->neighbourhood = Value::kApart;
    return;
  }
  if (unjoined_.size() > 2 * values_.size()) {
    // Nor must a run that never searches collect them for ever.
    std::fill_n(unjoined_.begin(), std::exchange(num_joined_, 0), nullptr);
    std::erase(unjoined_, nullptr);
    for (size_t i = 0; i < unjoined_.size(); ++i) unjoined_[i]->set_unjoined(i);
  }
  value->set_unjoined(unjoined_.size());
  unjoined_.push_back(value);
  // With thousands of blocks, while what is beside it is in the caches: thousands of values would
  // have to be joined before a search.
  constexpr size_t kRecent = 32;
  if (!goes_further() || arena_.blocks().size() < Search::kManyBlocks) return;
  while (unjoined_.size() - num_joined_ > kRecent) join(unjoined_[num_joined_++]);
}

void Core::join_sets() {
  while (num_joined_ < unjoined_.size()) join(unjoined_[num_joined_++]);
  unjoined_.clear();
  num_joined_ = 0;
}

void Core::join(Value* value) {
  if (value == nullptr) return;
  const int32_t node = neighbourhoods_.add(value, value->cost);
  value->neighbourhood = node;
  // Whether it will be recomputed: for its own storage, or for what has been evicted.
  bool wanted = value->storage != nullptr;
  for_each_result(value, [&](Value* result) {
    if (result->neighbourhood < 0) return add_beside(result, node);
    wanted |= !result->dormant;
    neighbourhoods_.unite(node, result->neighbourhood);
  });
  value->dormant = goes_further() && !wanted;
  for_each_source(value, [&](Value* source) {
    if (source->neighbourhood >= 0) {
      if (wanted && source->dormant) wake(source);
      neighbourhoods_.unite(node, source->neighbourhood);
    } else if (!is_left_out(value, source)) {
      add_beside(source, node);
    } else if (source->num_left_out >= kFew) {
      source->num_left_out = kFew + 1;
      mark_stale(source, kStaleSets);  // there may be too many
    } else {
      ++source->num_left_out;
    }
  });
  set_changed(node);
}

// Something that was made from it has been evicted: it is wanted, as is what it is made from.
void Core::wake(Value* value) {
  walked_.assign(1, value);
  while (!walked_.empty()) {
    Value* woken = walked_.back();
    walked_.pop_back();
    if (!std::exchange(woken->dormant, false)) continue;
    for_each_source(woken, [&](Value* source) {
      if (source->neighbourhood >= 0) {
        if (source->dormant) walked_.push_back(source);
      } else if (source->num_left_out > kFew) {
        mark_stale(source, kStaleSets);  // there may be few now
      } else {
        add_beside(source, woken->neighbourhood);  // the set is one that changes
      }
    });
  }
}

// The value has bytes again, or is about to be destroyed.
void Core::present(Value* value) {
  if (value->neighbourhood < 0) {
    if (value->neighbourhood != Value::kApart) unjoined_[value->unjoined()] = nullptr;
    value->neighbourhood = Value::kNoSet;
    refresh(value);
    return;
  }
  value->dormant = false;
  neighbourhoods_.remove(value->neighbourhood, value->record->cost);
  set_changed(std::exchange(value->neighbourhood, Value::kNoSet));
  // It may have been all that lay between them and its set.
  for_each_neighbour(value, [&](Value* neighbour) {
    if (neighbour->beside.count > 0) mark_stale(neighbour, kStaleSets);
  });
  refresh(value);
}

void Core::add_beside(Value* value, int32_t node) {
  BesideSets& beside = value->beside;
  if (beside.count == BesideSets::kMany || value->late || !value->is_evictable()) return;
  const int32_t set = neighbourhoods_.find(node);
  for (int8_t i = 0; i < beside.count; ++i) {
    if (neighbourhoods_.find(beside.nodes[i]) == set) return;
  }
  if (beside.count == BesideSets::kMost) find_beside(beside);
  if (beside.count < BesideSets::kMost) beside.nodes[beside.count] = node;
  ++beside.count;
}

// The roots of the sets, each once: some may have become one.
void Core::find_beside(BesideSets& beside) {
  int32_t* end = beside.nodes;
  for (int8_t i = 0; i < beside.count; ++i) {
    const int32_t set = neighbourhoods_.find(beside.nodes[i]);
    if (std::find(beside.nodes, end, set) == end) *end++ = set;
  }
  beside.count = static_cast<int8_t>(end - beside.nodes);
  std::fill(end, std::end(beside.nodes), Neighbourhoods::kNone);
}

void Core::set_changed(int32_t node) {
  if (all_sets_changed_) return;
  changed_sets_.push_back(node);
  // They are listed for a search, which may never come.
  if (static_cast<int64_t>(changed_sets_.size()) > arena_.blocks().size()) all_sets_changed_ = true;
}

// Marks the values beside the sets that have changed. False when there is so much to look at that
// one pass over all blocks is less work.
bool Core::mark_beside_changed() {
  if (all_sets_changed_) return false;
  int64_t most_looks = arena_.blocks().size() / 2;
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
    for (; stale_values_.size() > num_stale; stale_values_.pop_back()) {
      stale_values_.back()->stale = 0;
    }
    return false;
  }
  return true;
}

// Scores change with every eviction and every replay and are read by searches only: so they are
// brought up to date here.
void Core::refresh_stale() {
  join_sets();
  if (mark_beside_changed()) {
    update_blocks();
  } else {
    rescore_blocks();
  }
  changed_sets_.clear();
  all_sets_changed_ = false;
  COOP_DEBUG_ASSERT(scores_are_right());
}

// Whether it may be evicted, or at what cost, has changed. That it may not be is told at once: no
// search must ever find it.
void Core::refresh(Value* value) {
  if (!value->is_resident() || value->arena != &arena_) return;
  if (value->is_evictable()) {
    mark_stale(value, kStaleSets);
  } else if (value->is_candidate) {
    arena_.set_cost(arena_.find(value->offset), kBarrier);
    value->is_candidate = false;
  }
}

// What is marked is put on its block.
void Core::update_blocks() {
  constexpr size_t kAhead = 4;
  for (size_t i = 0; i < stale_values_.size(); ++i) {
    if (i + kAhead < stale_values_.size()) __builtin_prefetch(stale_values_[i + kAhead]);
    Value* value = stale_values_[i];
    const uint8_t stale = std::exchange(value->stale, 0);
    // What cannot be evicted is a barrier, whatever else is known of it.
    if (stale == 0 || value->arena != &arena_ || !value->is_evictable()) continue;
    const BlockMap::Position position = arena_.find(value->offset);
    arena_.touch(position, value->last_access);
    if (stale != kStaleAccess) arena_.set_cost(position, candidate_cost(value, stale));
  }
  stale_values_.clear();
}

// The same for all blocks, in their order.
void Core::rescore_blocks() {
  neighbourhoods_.prefetch_costs();
  arena_.rescore([&](Value* value, Cost& cost, double& last_access) {
    const uint8_t stale = value->stale;
    if (stale != 0) {
      if (!value->is_evictable()) return;
      last_access = value->last_access;
    }
    // What was merely used does not become a candidate by that.
    if ((stale & ~kStaleAccess) != 0) {
      cost = candidate_cost(value, stale);
    } else if (value->beside.count > 0 && cost != kBarrier && !value->late) {
      cost = score_cost(value);
    }
  });
  for (Value* value : stale_values_) value->stale = 0;
  stale_values_.clear();
}

// What the block of a value that may be evicted costs from now on.
Cost Core::candidate_cost(Value* value, uint8_t stale) {
  value->is_candidate = true;
  if (value->late) return moving_cost(value);
  if ((stale & kStaleSets) != 0) {
    // Asks the graph anew.
    value->beside = {};
    const int num_left_out = for_each_counted(value, [&](Value* neighbour) {
      if (neighbour->neighbourhood >= 0) add_beside(value, neighbour->neighbourhood);
    });
    value->num_left_out = static_cast<uint8_t>(std::min(num_left_out, kFew + 1));
  }
  return score_cost(value);
}

Cost Core::score_cost(Value* value) {
  BesideSets& beside = value->beside;
  if (beside.count == BesideSets::kMany) return neighbourhood_cost(value, false);
  auto sum = [&] {
    Cost sum = value->cost;
    for (const int32_t node : beside.nodes) sum += neighbourhoods_.cost(node);
    return sum;
  };
  // Nothing here hangs on how many there are or what they say, which nobody could foresee.
  const Cost cost = sum();
  if (!std::isnan(cost)) [[likely]]
    return cost;
  find_beside(beside);
  return sum();
}

Cost Core::neighbourhood_cost(const Value* value, bool exact) {
  if (exact) return exact_neighbourhood(value);
  join_sets();
  neighbourhoods_.begin_round();
  return value->record->cost + sets_cost(value);
}

// Of the sets beside it that were not seen in this round, as the graph says.
Cost Core::sets_cost(const Value* value) {
  Cost sum = 0;
  for_each_counted(value, [&](Value* neighbour) {
    if (neighbour->neighbourhood >= 0) sum += unseen_cost(neighbour->neighbourhood);
  });
  return sum;
}

Cost Core::unseen_cost(int32_t node) {
  const int32_t set = neighbourhoods_.find(node);
  return neighbourhoods_.first_in_round(set) ? neighbourhoods_.cost(set) : 0;
}

// To bring back all that it evicts, a set once, whatever lies beside it; and to copy what it moves.
// The blocks are up to date.
Cost Core::window_cost(const Window& window) {
  neighbourhoods_.begin_round();
  Cost sum = 0;
  for_each_block_in(window, [&](const Block& block) {
    if (block.is_free()) return;
    if (block.cost < 0) {
      sum += copying_cost(block.bytes);
      return;
    }
    const BesideSets& beside = block.value->beside;
    sum += block.value->cost;
    if (beside.count == BesideSets::kMany) {
      sum += sets_cost(block.value);
    } else {
      for (int8_t i = 0; i < beside.count; ++i) sum += unseen_cost(beside.nodes[i]);
    }
  });
  return sum;
}

// DTR's e*: evicted ancestors through evicted ancestors, evicted descendants likewise; but for late
// values, as in the sets, and for what a score does not count.
Cost Core::exact_neighbourhood(const Value* value) {
  const int64_t mark = ++mark_;
  Cost sum = value->record->cost;
  walked_.clear();
  // A record with several evicted outputs is replayed once.
  auto is_counted = [&](const Record* record) {
    return record == value->record ||
           std::any_of(record->outputs.begin(), record->outputs.end(), [&](const Value* output) {
             return output != nullptr && output->mark == mark;
           });
  };
  auto visit = [&](Value* neighbour) {
    if (!neighbour->is_absent() || neighbour->late || neighbour->mark == mark) return;
    if (!is_counted(neighbour->record)) sum += neighbour->record->cost;
    neighbour->mark = mark;
    walked_.push_back(neighbour);
  };
  size_t next = 0;
  for_each_source(value, visit);
  for (; next < walked_.size(); ++next) for_each_source(walked_[next], visit);
  next = walked_.size();
  for_each_counted(value, visit);
  for (; next < walked_.size(); ++next) for_each_result(walked_[next], visit);
  return sum;
}

// What the sets beside a value say is what the graph says.
bool Core::scores_are_right() {
  bool right = true;
  for_each_block([&](const Block& block) {
    if (block.is_free() || block.cost == kBarrier) return;
    const Value* value = block.value;
    right &= block.cost == (value->late ? moving_cost(value) : neighbourhood_cost(value, false));
  });
  return right;
}

}  // namespace coop
