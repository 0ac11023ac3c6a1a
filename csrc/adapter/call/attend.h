// What recomputing owes to whoever waits for it: that signals are seen, and that it does not take
// long in silence.
#pragma once

#include <c10/core/Device.h>

#include "core/types.h"

namespace coop {

class Engine;

// Before a replay, under the lock. What is thrown leaves nothing behind: the replay has made
// nothing yet, and the core unlocks what waited for it.
void attend(Engine& engine);
// Unlocked.
void warn_if_slow(Engine& engine);

// While a budget is left on this thread no signals are looked for: what is not brought back then is
// lost, so whoever interrupts it waits.
class UninterruptedScope {
 public:
  UninterruptedScope();
  ~UninterruptedScope();
  UninterruptedScope(const UninterruptedScope&) = delete;
  UninterruptedScope& operator=(const UninterruptedScope&) = delete;
};

// The program was interrupted (a signal's handler raised an exception) while it recomputed. It is
// also the exception that Python raises.
class Interruption {};

// Runs the handlers of signals that have come, which may throw an Interruption. On another thread
// than the main one no handler runs: see Note [Interrupts of a pass].
void run_signal_handlers();
// Warns in Python of a step that recomputes for longer than a plain step takes.
void warn_of_slow_step(const Stats& stats, Cost plain, Cost replay, c10::Device device);

}  // namespace coop
