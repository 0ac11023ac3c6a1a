// Errors of the engine as Python sees them.
#include "adapter/bind/bind_errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "adapter/bind/bind_core.h"
#include "adapter/trace/source.h"

namespace py = pybind11;

namespace coop {

namespace {

// Makes the exception from (operator, replayed operator, shortage); set by Python before the first
// engine.
PyObject* g_make_error = nullptr;

}  // namespace

py::dict explained(const Shortage& shortage, const Updated& updated) {
  py::dict d = to_dict(shortage);
  py::list largest;
  for (const Shortage::Held& held : shortage.largest) {
    largest.append(
        py::make_tuple(held.bytes, held.as, reinterpret_cast<uintptr_t>(held.handle), held.serial));
  }
  d["largest"] = largest;
  d["updated"] = updated.tensors;
  d["updated_of"] = updated.of;
  return d;
}

void throw_out_of_budget(const std::string& op, const std::string& replaying,
                         const Shortage& shortage, const Updated& updated) {
  const PythonScope python;
  const py::object error =
      py::reinterpret_borrow<py::object>(g_make_error)(op, replaying, explained(shortage, updated));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  python_error exception;
  exception.persist();
  throw exception;
}

void bind_errors(py::module_& m) {
  // Kernels are called through torch's bindings; our own functions must translate too.
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (python_error& error) {
      error.restore();
    }
  });
  m.def("set_error_factory",
        [](py::object make_error) { g_make_error = make_error.release().ptr(); });
}

}  // namespace coop
