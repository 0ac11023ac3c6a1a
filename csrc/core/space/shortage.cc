// What an allocation that does not fit can say about it (Rule 15).
#include <algorithm>

#include "core/space/space.h"

namespace coop {

OutOfBudget::OutOfBudget(const Shortage& shortage)
    : std::runtime_error("out of budget: " + std::to_string(shortage.wanted) +
                         " bytes wanted, at most " + std::to_string(shortage.largest_window) +
                         " consecutive bytes can be freed of a budget of " +
                         std::to_string(shortage.budget)),
      shortage(shortage) {}

Shortage Space::shortage(Bytes wanted) const {
  Shortage result;
  result.wanted = wanted;
  result.budget = budget_;
  result.held = held_;
  result.host_bytes = host_bytes_;
  auto add_kept = [&](const std::string& reason, Bytes bytes) {
    result.kept_bytes += bytes;
    auto kept = std::find_if(result.kept.begin(), result.kept.end(),
                             [&](const auto& entry) { return entry.first == reason; });
    if (kept == result.kept.end()) kept = result.kept.insert(kept, {reason, 0});
    kept->second += bytes;
  };
  auto hold = [&](const Block& block, const char* as) {
    const Value* value = block.value;
    const void* handle = value->storage == nullptr ? nullptr : value->storage->handle;
    result.largest.push_back({block.bytes, as, handle, value->serial});
    return block.bytes;
  };
  // Whether a window could contain it; else it is counted as what it is.
  auto is_usable = [&](const Block& block) {
    const Value* value = block.value;
    if (value == nullptr) return true;
    if (value->locks > 0) {
      result.locked_bytes += hold(block, "in use");
    } else if (value->is_kept()) {
      add_kept(value->storage->keep_reason, hold(block, "kept"));
    } else if (value->can_leave()) {
      return true;
    } else if (value->storage != nullptr && value->storage->handle == nullptr) {
      // No operator has returned it yet: it belongs to the one that runs.
      result.temporary_bytes += hold(block, "temporary");
    } else {
      result.root_bytes += hold(block, "root");
      if (value->on_host == HostState::kRefused) result.refused_bytes += block.bytes;
    }
    return false;
  };
  Bytes run = 0;
  for_each_block([&](const Block& block) {
    run = is_usable(block) ? run + block.bytes : 0;
    result.largest_window = std::max(result.largest_window, run);
  });
  std::stable_sort(result.largest.begin(), result.largest.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (result.largest.size() > Shortage::kMostLargest) {
    result.largest.resize(Shortage::kMostLargest);
  }
  // More budget is more room at the right end, behind the last run.
  result.sufficient_budget = budget_ + arena_.rounded(wanted) - run;
  return result;
}

}  // namespace coop
