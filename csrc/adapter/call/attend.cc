#include "adapter/call/attend.h"

#include "adapter/engine.h"
#include "core/clock.h"

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

void attend(Engine& engine) {
  if (num_uninterrupted > 0) return;
  static thread_local int64_t last_ns = 0;
  const int64_t ns = now_ns();
  if (ns - last_ns < kEveryNs && !engine.core().journal().pace.is_due()) return;
  last_ns = ns;
  const Unlocked unlocked(&engine.locks().mutex);
  warn_if_slow(engine);
  run_signal_handlers();
}

void warn_if_slow(Engine& engine) {
  Stats stats;
  Cost plain = 0;
  Cost replay = 0;
  {
    const EngineLock guard(engine);
    Pace& pace = engine.core().journal().pace;
    if (!pace.is_due()) return;
    pace.told();
    stats = engine.core().stats();
    plain = pace.plain();
    replay = pace.replay();
  }
  warn_of_slow_step(stats, plain, replay, engine.memory().device());
}

}  // namespace coop
