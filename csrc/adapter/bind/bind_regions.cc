// Python's view of compiled graphs.
#include "adapter/bind/bind_regions.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include "adapter/regions/region.h"

namespace py = pybind11;

namespace coop {

void bind_regions(py::module_& m) {
  py::class_<Region, c10::intrusive_ptr<Region>>(m, "Region")
      .def(py::init<py::object, std::string, std::vector<int32_t>, bool, double, double>(),
           py::arg("callable"), py::arg("name"), py::arg("written"), py::arg("has_results"),
           py::arg("flops"), py::arg("bytes"))
      .def("call", [](Region& region, const py::list& inputs) {
        torch::PyWarningHandler warnings;
        try {
          return region.call(inputs);
        } catch (...) {
          warnings.set_in_exception();
          throw;
        }
      });
  m.def("is_in_region", &is_in_region);
}

}  // namespace coop
