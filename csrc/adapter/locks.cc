#include "adapter/locks.h"

#include <Python.h>

#include "adapter/engine.h"

namespace coop {

void WithoutPython::give_up() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) thread_ = PyEval_SaveThread();
}

void WithoutPython::take_back() {
  PyEval_RestoreThread(static_cast<PyThreadState*>(std::exchange(thread_, nullptr)));
}

PythonScope::PythonScope() {
  COOP_DEBUG_ASSERT(held_locks().mutexes == 0);
  state_ = PyGILState_Ensure();
}

PythonScope::~PythonScope() { PyGILState_Release(static_cast<PyGILState_STATE>(state_)); }

HeldLocks& held_locks() {
  static thread_local HeldLocks locks;
  return locks;
}

EngineLock::EngineLock(Engine& engine) : EngineLock(engine.locks()) {}

void EngineLock::unlock_and_let_go() {
  Garbage garbage;
  garbage.swap(garbage_);
  mutex_.unlock();
  held_ = false;
  python_.resume();
}

}  // namespace coop
