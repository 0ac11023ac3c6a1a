#pragma once

#include <pybind11/pybind11.h>

namespace coop {

void bind_attend(pybind11::module_& m);

}  // namespace coop
