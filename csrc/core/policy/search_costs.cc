#include "core/policy/search_costs.h"

#include <algorithm>

#include "core/model/value.h"

namespace coop {

SearchCosts::Reader::Reader(const SearchCosts& costs, int first_chunk)
    : costs_(costs),
      locked_(costs.locked_.data()),
      end_(costs.locked_.data() + costs.locked_.size()) {
  while (locked_ != end_ && locked_->chunk < first_chunk) ++locked_;
}

const Cost* SearchCosts::Reader::changed_chunk(int index) {
  const BlockMap& blocks = costs_.blocks_;
  const BlockMap::Chunk& chunk = blocks.chunk(index);
  std::copy_n(chunk.costs, chunk.count, own_);
  if (costs_.holds_roots_) {
    for (int i = 0; i < chunk.count; ++i) {
      if (!chunk.is_free(i) && chunk.values[i]->is_root()) own_[i] = kBarrier;
    }
  }
  if (costs_.most_ < std::numeric_limits<Cost>::infinity()) {
    // The values have long left the caches: they are asked for a chunk ahead.
    const BlockMap::Chunk* next =
        index + 1 < blocks.num_chunks() ? &blocks.chunk(index + 1) : nullptr;
    for (int i = 0; i < chunk.count; ++i) {
      if (next != nullptr && i < next->count) __builtin_prefetch(next->values[i]);
      if (chunk.is_free(i) || own_[i] == kBarrier || chunk.values[i]->made_in_backward) continue;
      if (chunk.values[i]->is_root()) continue;  // nothing is adjacent to it
      own_[i] = std::min(own_[i], costs_.most_ * chunk.values[i]->cost);
    }
  }
  for (; locked_ != end_ && locked_->chunk == index; ++locked_) own_[locked_->slot] = kBarrier;
  if (costs_.copy_cost_ != nullptr) {
    for (int i = 0; i < chunk.count; ++i) {
      if (chunk.is_free(i) || own_[i] == kBarrier || own_[i] < 0) continue;
      const double own_score = score(own_[i], chunk.last_accesses[i], costs_.clock_);
      if (own_score <= costs_.price_ * static_cast<double>(chunk.bytes[i])) continue;
      const Cost copying = costs_.copy_cost_->of(chunk.bytes[i]);
      own_[i] = -copying * (costs_.clock_ - chunk.last_accesses[i] + 1) / costs_.staleness_;
    }
  }
  return own_;
}

}  // namespace coop
