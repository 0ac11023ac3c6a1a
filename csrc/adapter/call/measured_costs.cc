#include "adapter/call/measured_costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <utility>

#include "adapter/dispatch/op_info.h"
#include "core/hash.h"

namespace coop {

// The same in every process.
uint64_t MeasuredCosts::key(const OpInfo& info, double flops, double bytes) {
  const auto id = static_cast<size_t>(info.id);
  if (id >= name_keys_.size()) name_keys_.resize(id + 1, 0);
  uint64_t& name_key = name_keys_[id];
  if (name_key == 0) {
    name_key = 1;
    for (const char c : info.name) name_key = extended(name_key, static_cast<unsigned char>(c));
  }
  return extended(extended(name_key, std::bit_cast<uint64_t>(flops)),
                  std::bit_cast<uint64_t>(bytes));
}

Cost MeasuredCosts::end(int32_t timing, const OpInfo& info, double flops, double bytes,
                        Cost estimate) {
  if (watch_ == nullptr) return estimate;
  Entry& entry = entries_[key(info, flops, bytes)];
  found_new_ |= entry.cost < 0;
  if (timing != kNotTimed) {
    watch_->end(timing);
    if (pending_.size() < kMostPending) {
      pending_.push_back({timing, entry.was_seen, &entry});
    } else {
      watch_->drop(timing);
    }
    entry.was_seen = true;
  }
  return entry.cost < 0 ? estimate : entry.cost;
}

void MeasuredCosts::end_step() {
  if (watch_ == nullptr) return;
  size_t num_read = 0;
  std::vector<Entry*> changed;
  for (; num_read < pending_.size(); ++num_read) {
    const Pending& pending = pending_[num_read];
    const double ns = watch_->read(pending.timing);
    if (ns < 0) break;
    watch_->drop(pending.timing);
    Entry& entry = *pending.entry;
    if (!pending.counts || entry.samples.size() == kMostSamples) continue;
    entry.samples.push_back(static_cast<float>(ns));
    if (!std::exchange(entry.is_changed, true)) changed.push_back(&entry);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(num_read));
  for (Entry* entry : changed) {
    const auto quartile =
        entry->samples.begin() + static_cast<std::ptrdiff_t>(entry->samples.size() / 4);
    std::nth_element(entry->samples.begin(), quartile, entry->samples.end());
    entry->cost = std::max<Cost>(std::round(*quartile), 1);
    entry->is_changed = false;
  }
  num_timed_steps_ += is_timing_;
  steps_to_go_ = std::exchange(found_new_, false) ? kStepsAfterNew : std::max(steps_to_go_ - 1, 0);
  is_timing_ = steps_to_go_ > 0 && num_timed_steps_ < kMostTimedSteps;
}

std::unordered_map<uint64_t, Cost> MeasuredCosts::table() const {
  std::unordered_map<uint64_t, Cost> table;
  for (const auto& [key, entry] : entries_) {
    if (entry.cost >= 0) table.emplace(key, entry.cost);
  }
  return table;
}

void MeasuredCosts::set_table(const std::unordered_map<uint64_t, Cost>& table) {
  for (const auto& [key, cost] : table) {
    Entry& entry = entries_[key];
    entry.cost = cost;
    entry.was_seen = true;
  }
}

}  // namespace coop
