// Several given results (`out=(a, b)`) on torch before 2.13.
//
// Its boxed call of a kernel that returns references to them takes the references after they have
// gone with the stack, and the process ends (pytorch#174807; seen on 2.11, 2.12 was not tried). So
// such an operator is run as the one that makes its results, and they are copied into those that
// were given.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

#include "adapter/torch_releases.h"

namespace coop {

// The operator that makes what `op` is given; nothing when `op` is not given several results.
std::optional<c10::OperatorHandle> find_maker(const c10::OperatorHandle& op);

// Runs `maker` with the arguments on the stack, the last `num_results` of which are the given
// results. Leaves those on the stack.
void make_and_copy(const c10::OperatorHandle& maker, size_t num_results, torch::jit::Stack* stack);

}  // namespace coop
