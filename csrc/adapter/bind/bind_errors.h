#pragma once

#include <pybind11/pybind11.h>

#include "adapter/errors.h"

namespace coop {

// With what is largest of what cannot be evicted, by the address of torch's StorageImpl: a
// program's tensors are found by it.
pybind11::dict explained(const Shortage& shortage, const Updated& updated = {});

void bind_errors(pybind11::module_& m);

}  // namespace coop
