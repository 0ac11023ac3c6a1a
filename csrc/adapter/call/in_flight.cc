#include "adapter/call/in_flight.h"

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "adapter/engine.h"

namespace coop {

InFlight::~InFlight() {
  for (const auto& entry : entries_) engine_.core().let_go(entry->operation);
}

void InFlight::add(Operation operation, c10::intrusive_ptr<c10d::Work> work) {
  const std::lock_guard<std::mutex> guard(mutex_);
  entries_.push_back(
      std::make_unique<Entry>(Entry{std::move(operation), std::move(work), ++last_number_}));
  count_.store(entries_.size(), std::memory_order_relaxed);
}

// Note [When a collective is done]
// A Work says so by isCompleted(). NCCL's does, by an event. Of gloo's the asynchronous ones do;
// sends, receives, and those that are made of several never do, or only when waited for, and are
// dropped then. But whoever runs on a thread of gloo's has its Work: when nobody has it but we,
// nobody uses the memory. An exception is a Work made of several that use the tensors themselves:
// they go on if it is dropped. Classes of others may do as they like. What is not understood is
// held for good (Rule 9).
bool InFlight::understands(const c10d::Work& work, const Collective& collective) const {
  const std::string_view name = typeid(work).name();
  auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (!engine_.memory().device().is_cpu()) return has("WorkNCCL");
  return !collective.is_several && has("4c10d") && !has("PyWork") && !has("Python");
}

bool InFlight::uses(const Value* value) {
  if (is_empty()) return false;
  const std::lock_guard<std::mutex> guard(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& entry) { return entry->operation.has_locked(value); });
}

bool InFlight::collect(bool all) {
  struct Asked {
    c10::intrusive_ptr<c10d::Work> work;
    int64_t number;
  };
  std::vector<Asked> asked;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (entries_.empty()) return false;
    const size_t first = all ? 0 : next_++ % entries_.size();
    const size_t end = all ? entries_.size() : first + 1;
    for (size_t i = first; i < end; ++i) {
      const Entry& entry = *entries_[i];
      asked.push_back({entry.work, entry.number});
    }
  }
  const bool on_cpu = engine_.memory().device().is_cpu();
  std::vector<int64_t> done;
  for (const Asked& each : asked) {
    const bool abandoned = on_cpu && each.work.use_count() == 2;  // ours, and this one
    if (abandoned || each.work->isCompleted()) done.push_back(each.number);
  }
  if (done.empty()) return false;
  std::vector<std::unique_ptr<Entry>> ended;  // let go of when the locks are free
  {
    const EngineLock engine(engine_);
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const int64_t number : done) {
      auto found = std::find_if(entries_.begin(), entries_.end(),
                                [&](const auto& entry) { return entry->number == number; });
      if (found == entries_.end()) continue;  // another thread was here
      engine_.core().let_go((*found)->operation);
      std::swap(*found, entries_.back());
      ended.push_back(std::move(entries_.back()));
      entries_.pop_back();
    }
    count_.store(entries_.size(), std::memory_order_relaxed);
  }
  return !ended.empty();
}

std::atomic<int>& InFlight::coalescing() {
  static std::atomic<int> depth{0};
  return depth;
}

}  // namespace coop
