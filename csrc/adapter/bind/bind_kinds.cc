// The kinds that Python knows by name: it takes their numbers, and the layout of events, from here.
#include "adapter/bind/bind_kinds.h"

#include <pybind11/numpy.h>

#include "core/events.h"
#include "core/simulate/entry.h"

namespace py = pybind11;

namespace coop {

namespace {

// The compiler says when an enumerator is missing.

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::kAllocate:
      return "ALLOCATE";
    case EventKind::kFree:
      return "FREE";
    case EventKind::kEvict:
      return "EVICT";
    case EventKind::kReplay:
      return "REPLAY";
    case EventKind::kSearch:
      return "SEARCH";
    case EventKind::kStep:
      return "STEP";
    case EventKind::kOperator:
      return "OPERATOR";
    case EventKind::kRoot:
      return "ROOT";
    case EventKind::kHandOver:
      return "HAND_OVER";
    case EventKind::kRecipe:
      return "RECIPE";
    case EventKind::kKeep:
      return "KEEP";
    case EventKind::kUnkeep:
      return "UNKEEP";
    case EventKind::kSave:
      return "SAVE";
    case EventKind::kLoad:
      return "LOAD";
    case EventKind::kUnsave:
      return "UNSAVE";
  }
  return nullptr;
}

// Numbers by name. The enumerators are numbered from 0.
template <typename Kind>
py::dict numbers() {
  py::dict result;
  for (int number = 0;; ++number) {
    const char* name = name_of(static_cast<Kind>(number));
    if (name == nullptr) return result;
    result[name] = number;
  }
}

}  // namespace

void bind_kinds(py::module_& m) {
  PYBIND11_NUMPY_DTYPE(Event, offset, bytes, clock, amount, value, op, kind, detail, source);
  m.def("event_dtype", [] { return py::dtype::of<Event>(); });
  m.def("event_kinds", &numbers<EventKind>);
  m.def("entry_kinds", &numbers<EntryKind>);
  m.def("memory_kinds", &numbers<MemoryStep::Kind>);
}

}  // namespace coop
