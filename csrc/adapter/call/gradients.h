// Rule 11: gradients that are stored, and the leaves they are stored for, stay.
#pragma once

#include <ATen/core/Tensor.h>

namespace coop {

class Engine;
class Invocation;

// Whether this thread is in a backward pass, and the leaf whose gradient it is accumulating;
// undefined when it does something else. One look at torch's state for both: it is a slow one.
struct Backward {
  bool is_running = false;
  at::Tensor leaf;
};
Backward look_at_backward();

// A leaf with a gradient is a parameter, or is used as one: optimizers will write both. The
// gradient is what the operator made last.
void make_gradient_root(Engine& engine, const at::Tensor& leaf, const Invocation& invocation);

}  // namespace coop
