// Rule 11: gradients that are stored, and the leaves they are stored for, stay.
#pragma once

#include <ATen/core/Tensor.h>

namespace coop {

class Engine;
class Invocation;

// The leaf whose gradient this thread is accumulating; undefined when it does something else.
at::Tensor accumulating_leaf();

// A leaf with a gradient is a parameter, or is used as one: optimizers will write both. The
// gradient is what the operator made last.
void make_gradient_root(Engine& engine, const at::Tensor& leaf, const Invocation& invocation);

}  // namespace coop
