// The extension module coop._C.
#include <pybind11/pybind11.h>

#include "adapter/bind/bind_attend.h"
#include "adapter/bind/bind_core.h"
#include "adapter/bind/bind_engine.h"
#include "adapter/bind/bind_errors.h"
#include "adapter/bind/bind_kinds.h"
#include "adapter/bind/bind_memory.h"
#include "adapter/bind/bind_regions.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.attr("torch_version") = COOP_TORCH_VERSION;
  coop::bind_core(m);
  coop::bind_errors(m);
  coop::bind_engine(m);
  coop::bind_kinds(m);
  coop::bind_attend(m);
  coop::bind_memory(m);
  coop::bind_regions(m);
}
