#include "core/policy/runners_up.h"

#include <algorithm>

namespace coop {

RunnersUp rank_runners_up(Bytes bytes, const Window& best, SearchMemory& memory) {
  constexpr size_t kMost = 64;
  constexpr double kTolerance = 8;  // of a key; with excess, 2.8 times the score
  RunnersUp found;
  found.bytes = bytes;
  // What is moved about while they are ordered is small.
  using Rank = SearchMemory::Rank;
  auto cheaper = [](const Rank& a, const Rank& b) { return a.key < b.key; };
  std::vector<Rank>& ranks = memory.ranks;
  ranks.clear();
  for (size_t i = 0; i < memory.num_separate; ++i) ranks.push_back({memory.separate[i].key, i});
  if (ranks.size() > kMost) {
    std::nth_element(ranks.begin(), ranks.begin() + kMost, ranks.end(), cheaper);
    ranks.resize(kMost);
  }
  std::sort(ranks.rbegin(), ranks.rend(), cheaper);
  std::vector<RankedWindow>& windows = found.windows;
  windows.reserve(ranks.size());
  for (const Rank& rank : ranks) windows.push_back(memory.separate[rank.index]);
  if (windows.empty()) return found;
  found.most_key = std::min(windows.front().key, windows.back().key * kTolerance);
  std::erase_if(windows, [&](const RankedWindow& each) {
    return each.begin < best.end && each.end > best.begin;
  });
  return found;
}

void RunnersUp::put_back(const RankedWindow& ranked) {
  const auto costs_more = [](const RankedWindow& a, const RankedWindow& b) {
    return a.key > b.key;
  };
  windows.insert(std::upper_bound(windows.begin(), windows.end(), ranked, costs_more), ranked);
}

}  // namespace coop
