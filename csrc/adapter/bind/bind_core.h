#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "core/events.h"
#include "core/types.h"

namespace coop {

pybind11::dict to_dict(const Stats& stats);
pybind11::dict to_dict(const Shortage& shortage);
pybind11::array events_as_array(const EventLog& log);  // bytes of struct Event

void bind_core(pybind11::module_& m);

}  // namespace coop
