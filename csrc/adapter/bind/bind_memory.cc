// A device's memory by itself, without an engine: for the suite that all memories pass
// (tests/memory_contract.py).
#include "adapter/bind/bind_memory.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "adapter/storage/cpu_arena.h"
#include "adapter/storage/memory.h"
#include "adapter/storage/meta_arena.h"
#include "core/model/value.h"
#ifdef COOP_CUDA
#include "cuda/memory.h"
#endif

namespace py = pybind11;

namespace coop {

namespace {

// Storages are known by numbers. Tests stay inside of the region.
class TestMemory {
 public:
  explicit TestMemory(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {}

  Memory& operator*() const { return *memory_; }
  char* at(Bytes offset) const { return memory_->base() + offset; }
  Storage* storage(int number) { return &storages_[number]; }

 private:
  std::unique_ptr<Memory> memory_;
  std::map<int, Storage> storages_;
};

// What Python wants to be called when its program begins to make tensors; never freed.
PyObject* g_at_first_tensors = nullptr;

// An allocation can be anywhere, without the GIL: Python calls it between two of its instructions,
// on the main thread.
void call_at_first_tensors() {
  Py_AddPendingCall(
      [](void*) {
        PyObject* result = PyObject_CallNoArgs(g_at_first_tensors);
        Py_XDECREF(result);
        return result == nullptr ? -1 : 0;
      },
      nullptr);
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def("call_at_first_tensors", [](const py::function& call, Bytes bytes) {
    g_at_first_tensors = py::function(call).release().ptr();
    await_first_bytes(bytes, &call_at_first_tensors);
  });
  m.def("call_at_no_tensors", [] { await_first_bytes(0, &call_at_first_tensors); });

  py::class_<Fence>(m, "Fence").def("passed", &Fence::passed, py::arg("wait"));

  py::class_<TestMemory>(m, "TestMemory")
      .def_static("cpu",
                  [](Bytes bytes) {
                    install_cpu_allocator();
                    return std::make_unique<TestMemory>(make_cpu_memory(bytes));
                  })
      .def_static("meta",
                  [](Bytes bytes) { return std::make_unique<TestMemory>(make_meta_memory(bytes)); })
#ifdef COOP_CUDA
      .def_static("cuda",
                  [](Bytes bytes) {
                    return std::make_unique<TestMemory>(std::make_unique<CudaMemory>(bytes, 0));
                  })
#endif
      .def("device", [](const TestMemory& memory) { return (*memory).device().str(); })
      .def("base",
           [](const TestMemory& memory) { return reinterpret_cast<uintptr_t>(memory.at(0)); })
      .def("header_bytes", [](const TestMemory& memory) { return (*memory).header_bytes(); })
      .def("reserved_bytes", [](const TestMemory& memory) { return (*memory).reserved_bytes(); })
      .def("write",
           [](const TestMemory& memory, Bytes offset, const std::string& bytes) {
             (*memory).copy(memory.at(offset), bytes.data(), static_cast<Bytes>(bytes.size()));
           })
      .def("read",
           [](const TestMemory& memory, Bytes offset, Bytes bytes) {
             std::string found(static_cast<size_t>(bytes), '\0');
             (*memory).copy(found.data(), memory.at(offset), bytes);
             return py::bytes(found);
           })
      .def("copy", [](const TestMemory& memory, Bytes to, Bytes from,
                      Bytes bytes) { (*memory).copy(memory.at(to), memory.at(from), bytes); })
      .def("discard", [](const TestMemory& memory, Bytes offset,
                         Bytes bytes) { (*memory).discard(offset, bytes); })
      // The address that it had; none where there is no such memory.
      .def("outside",
           [](const TestMemory& memory, Bytes bytes) -> std::optional<uintptr_t> {
             const c10::DataPtr data = (*memory).allocate_outside(bytes);
             if (!data) return {};
             return reinterpret_cast<uintptr_t>(data.get());
           })
      .def("on_main_stream", [](const TestMemory& memory) { return (*memory).on_main_stream(); })
      .def("allocated",
           [](TestMemory& memory, int number) { (*memory).allocated(memory.storage(number)); })
      .def("used", [](TestMemory& memory, int number) { (*memory).used(memory.storage(number)); })
      .def(
          "after_last_use",
          [](TestMemory& memory, int number) {
            return (*memory).after_last_use(memory.storage(number));
          },
          py::keep_alive<0, 1>());
}

}  // namespace coop
