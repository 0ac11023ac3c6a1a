// What recomputing owes to whoever waits for it: that signals are seen, and that it does not take
// long in silence.
#include "torch/attend.h"

#include "core/clock.h"
#include "torch/engine.h"

namespace coop {

namespace {

constexpr int64_t kEveryNs = 50'000'000;
thread_local int num_uninterrupted = 0;

// Python runs without the engine's lock: its handlers may use tensors.
class Unlocked {
 public:
  explicit Unlocked(EngineMutex* mutex) : mutex_(mutex) { mutex_->unlock(); }
  ~Unlocked() { mutex_->lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  EngineMutex* const mutex_;
};

}  // namespace

UninterruptedScope::UninterruptedScope() { ++num_uninterrupted; }
UninterruptedScope::~UninterruptedScope() { --num_uninterrupted; }

// Before a replay, under the lock. What is thrown leaves nothing behind: the replay has made
// nothing yet, and the core unlocks what waited for it.
void Engine::attend() {
  if (num_uninterrupted > 0) return;
  static thread_local int64_t last_ns = 0;
  const int64_t ns = now_ns();
  if (ns - last_ns < kEveryNs && !core_.pace().is_due()) return;
  last_ns = ns;
  const Unlocked unlocked(&mutex_);
  warn_if_slow();
  run_signal_handlers();
}

void Engine::warn_if_slow() {
  Stats stats;
  Cost plain = 0;
  Cost replay = 0;
  {
    const EngineLock guard(*this);
    Pace& pace = core_.pace();
    if (!pace.is_due()) return;
    pace.told();
    stats = core_.stats();
    plain = pace.plain();
    replay = pace.replay();
  }
  warn_of_slow_step(stats, plain, replay, memory_->device());
}

}  // namespace coop
