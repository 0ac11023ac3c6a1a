// Operators as the dispatcher's fallback gets them: any, with their arguments on a stack.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace coop {

class Engine;

// For tensors without bytes: Python modes come before our dispatch key, so Python tells us of the
// operator, and runs it.
void intercept_fake(Engine& engine, const c10::OperatorHandle& op, torch::jit::Stack* stack,
                    const std::function<void(torch::jit::Stack*)>& run);

}  // namespace coop
