// Torch before 2.13 has our dispatch key above Python's (2.12 was not looked at; the order
// decides).
//
// So an operator on a tensor of a Python class, or under a mode of Python's, comes to us first, and
// torch then keeps our key out of all that Python calls for it: what is evicted would be met there,
// and what is written would not be seen. We call Python ourselves, as torch does, with our key left
// in. Then an operator is seen where Python calls it, as on later versions.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "adapter/torch_releases.h"

namespace coop {

inline bool is_for_python(c10::DispatchKeySet keys) {
  return kPythonIsBelowUs && keys.has(c10::DispatchKey::Python);
}

void call_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The same with an operator's C++ arguments.
template <typename Signature, typename... Arguments>
decltype(auto) call_python_with(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                Arguments&&... arguments) {
  return c10::impl::BoxedKernelWrapper<Signature>::call(
      c10::BoxedKernel::makeFromFunction<&call_python>(), op, keys,
      std::forward<Arguments>(arguments)...);
}

}  // namespace coop
