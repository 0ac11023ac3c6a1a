// Locks that go well with Python's.
//
// Note [Lock order]
// From the outside in; whoever holds one may take those below it, and none above.
//   1. the materializer (`EngineLocks::materializer`): held by the one thread that replays, while
//      operators run. Recursive.
//   2. a generator's lock (rng.h): an operator that draws runs under it. It runs no Python.
//      Recursive.
//   3. the engine's mutex (`EngineLocks::mutex`): guards the core for moments. One engine's at a
//      time.
//   4. leaves, under which nothing is called: the registry, the operator table, the source lines.
//      (The GPU allocator's `raw_mutex_` comes before the mutex.)
// Python's lock (the GIL) is outside of that order: code of Python's may run under 1, and torch
// takes the GIL for a moment under 3, when it counts references to a storage that has a Python
// object. So nobody waits for 1 or 3 while he holds the GIL: EngineLock and MaterializerMutex give
// it up first.
//
// Nothing that may come back to us runs under 3 or 4. Tensors, storages and recipes are let go of
// when the lock is free (EngineLock keeps them until then); warnings and errors are made then;
// Python's tensors are asked for their sizes before; and we enter Python through PythonScope only,
// which the debug build lets nobody do under a lock.
#pragma once

#include <c10/core/StorageImpl.h>

#include <mutex>
#include <vector>

#include "core/check.h"

namespace coop {

class Engine;

// Gives Python's lock up for its lifetime, if this thread holds it.
class WithoutPython {
 public:
  WithoutPython() = default;
  ~WithoutPython() { resume(); }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;
  void give_up();
  void resume() {
    if (thread_ != nullptr) take_back();
  }

 private:
  void take_back();

  void* thread_ = nullptr;  // Python's state of it; null: it is not given up
};

// Holds Python's lock. Our only way into Python.
class PythonScope {
 public:
  PythonScope();
  ~PythonScope();
  PythonScope(const PythonScope&) = delete;
  PythonScope& operator=(const PythonScope&) = delete;

 private:
  int state_;
};

// Of this thread, in the debug build only.
struct HeldLocks {
  int materializers = 0;
  int mutexes = 0;
};
HeldLocks& held_locks();

class EngineMutex {
 public:
  bool try_lock() {
    COOP_DEBUG_ASSERT(held_locks().mutexes == 0);
    if (!mutex_.try_lock()) return false;
    COOP_DEBUG_ONLY(++held_locks().mutexes);
    return true;
  }
  // Not while holding Python's lock.
  void lock_waiting() {
    COOP_DEBUG_ASSERT(held_locks().mutexes == 0);
    mutex_.lock();
    COOP_DEBUG_ONLY(++held_locks().mutexes);
  }
  void lock() {
    if (try_lock()) return;
    WithoutPython python;
    python.give_up();
    lock_waiting();
  }
  void unlock() {
    COOP_DEBUG_ONLY(--held_locks().mutexes);
    mutex_.unlock();
  }
  // Besides those of other engines.
  void lock_for_fork() {
    WithoutPython python;
    python.give_up();
    mutex_.lock();
  }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class MaterializerMutex {
 public:
  void lock() {
    COOP_DEBUG_ASSERT(held_locks().mutexes == 0);
    if (!mutex_.try_lock()) {
      WithoutPython python;
      python.give_up();
      mutex_.lock();
    }
    COOP_DEBUG_ONLY(++held_locks().materializers);
  }
  void unlock() {
    COOP_DEBUG_ONLY(--held_locks().materializers);
    mutex_.unlock();
  }

 private:
  std::recursive_mutex mutex_;
};

// Storages that were held under the lock.
using Garbage = std::vector<c10::intrusive_ptr<c10::StorageImpl>>;

// Of one engine.
struct EngineLocks {
  MaterializerMutex materializer;
  EngineMutex mutex;
  Garbage garbage;  // to be let go of when the mutex is free
};

// Holds an engine's mutex; lets go of what was held under it afterwards.
class EngineLock {
 public:
  explicit EngineLock(EngineLocks& locks) : mutex_(locks.mutex), garbage_(locks.garbage) { lock(); }
  explicit EngineLock(Engine& engine);
  ~EngineLock() {
    if (held_) unlock();
  }
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;
  void lock() {
    if (!mutex_.try_lock()) {
      python_.give_up();
      mutex_.lock_waiting();
    }
    held_ = true;
  }
  void unlock() {
    if (!garbage_.empty()) return unlock_and_let_go();
    mutex_.unlock();
    held_ = false;
    python_.resume();
  }

 private:
  void unlock_and_let_go();

  EngineMutex& mutex_;
  Garbage& garbage_;
  WithoutPython python_;
  bool held_ = false;
};

// Holds both locks, for what may replay.
class ReplayLock {
 public:
  explicit ReplayLock(EngineLocks& locks) : materializer_(locks.materializer), mutex_(locks) {}

 private:
  const std::lock_guard<MaterializerMutex> materializer_;
  const EngineLock mutex_;
};

}  // namespace coop
