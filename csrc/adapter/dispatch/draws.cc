#include "adapter/dispatch/draws.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <utility>

#include "adapter/dispatch/op_info.h"

namespace coop {

namespace {

// Torch uses it in its own tests only; above.cc has the other one of that kind. No operator is
// dispatched to it but inside of a scope.
constexpr c10::DispatchKey kDrawKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

thread_local const at::Generator* given_generator = nullptr;

void give_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const OpInfo& info = op_info(op);
  if (info.generator_argument >= 0 && given_generator != nullptr) {
    c10::IValue& argument = (*stack)[stack->size() - info.arguments.size() +
                                     static_cast<size_t>(info.generator_argument)];
    if (argument.isNone()) argument = *given_generator;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDrawKey), stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&give_generator>());
}

DrawScope::DrawScope(const at::Generator& generator)
    : outer_(std::exchange(given_generator, &generator)), seen_(kDrawKey) {}

DrawScope::~DrawScope() { given_generator = outer_; }

}  // namespace coop
