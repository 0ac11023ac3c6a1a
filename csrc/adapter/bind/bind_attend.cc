// Signals and warnings while the engine recomputes: what of that needs Python.
#include "adapter/bind/bind_attend.h"

#include <sys/syscall.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include "adapter/bind/bind_core.h"
#include "adapter/call/attend.h"
#include "adapter/call/interrupts.h"
#include "adapter/locks.h"

namespace py = pybind11;

namespace coop {

namespace {

// Warns of (statistics, cost of a plain step, of this one's replays, device). Set by Python before
// the first engine.
PyObject* g_warn_slow = nullptr;

class InterruptionError final : public python_error, public Interruption {};

[[noreturn]] void throw_interruption() {
  InterruptionError exception;
  exception.persist();
  throw exception;
}

bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// On another thread than the main one. See Note [Interrupts of a pass].
void end_interrupted_pass() {
  if (!is_pass_interrupted()) return;
  const PythonScope python;
  const py::module_ signal = py::module_::import("signal");
  const py::object handler = signal.attr("getsignal")(signal.attr("SIGINT"));
  if (!handler.is(signal.attr("default_int_handler"))) return;
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw_interruption();
}

}  // namespace

void run_signal_handlers() {
  if (Py_IsInitialized() == 0) return;
  if (!is_main_thread()) return end_interrupted_pass();
  const PythonScope python;
  if (PyErr_CheckSignals() != 0) throw_interruption();
}

void warn_of_slow_step(const Stats& stats, Cost plain, Cost replay, c10::Device device) {
  const PythonScope python;
  try {
    py::reinterpret_borrow<py::object>(g_warn_slow)(to_dict(stats), plain, replay, device.str());
  } catch (py::error_already_set& error) {
    error.restore();  // where warnings are errors
    throw_interruption();
  }
}

void bind_attend(py::module_& m) {
  m.def("set_slow_step_warning", [](py::object warn) { g_warn_slow = warn.release().ptr(); });
  m.def("watch_interrupts", &watch_interrupts);
  m.def("stop_watching_interrupts", &stop_watching_interrupts);
  m.def("begin_pass", [] {
    begin_pass(is_main_thread());
    try {
      check_signals();
    } catch (...) {
      end_pass(is_main_thread());
      throw;
    }
  });
  m.def("end_pass", [] {
    end_pass(is_main_thread());
    check_signals();
  });
}

}  // namespace coop
