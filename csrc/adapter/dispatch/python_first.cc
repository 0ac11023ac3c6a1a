#include "adapter/dispatch/python_first.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/PyInterpreter.h>

namespace coop {

void call_python(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  constexpr c10::DispatchKeySet kUpToPython =
      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python)
          .add(c10::DispatchKey::Python);
  constexpr c10::DispatchKeySet kAbovePython =
      c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^ kUpToPython;
  const c10::impl::ExcludeDispatchKeyGuard done(kAbovePython.remove(kOurKey));
  (*getPyInterpreter())->dispatch(op, stack);
}

}  // namespace coop
