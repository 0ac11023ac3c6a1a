#include "adapter/dispatch/tuple_out.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <vector>

namespace coop {

namespace {

bool is_given(const c10::Argument& argument) {
  return argument.is_out() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace

std::optional<c10::OperatorHandle> find_maker(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const auto& arguments = schema.arguments();
  const size_t num_results = schema.returns().size();
  if (num_results < 2 || arguments.size() < num_results) return std::nullopt;
  const size_t num_inputs = arguments.size() - num_results;
  if (!std::all_of(arguments.begin() + static_cast<std::ptrdiff_t>(num_inputs), arguments.end(),
                   is_given)) {
    return std::nullopt;
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name != schema.name()) continue;
    const auto candidate = dispatcher.findSchema(name);
    if (!candidate) continue;
    const auto& others = candidate->schema().arguments();
    if (others.size() == num_inputs && candidate->schema().returns().size() == num_results &&
        std::equal(others.begin(), others.end(), arguments.begin(),
                   [](const c10::Argument& a, const c10::Argument& b) {
                     return a.name() == b.name() && *a.type() == *b.type();
                   })) {
      return candidate;
    }
  }
  return std::nullopt;
}

void make_and_copy(const c10::OperatorHandle& maker, size_t num_results, torch::jit::Stack* stack) {
  const std::vector<c10::IValue> given(stack->end() - static_cast<std::ptrdiff_t>(num_results),
                                       stack->end());
  torch::jit::drop(*stack, num_results);
  maker.callBoxed(stack);
  for (size_t i = 0; i < num_results; ++i) {
    c10::IValue& slot = (*stack)[stack->size() - num_results + i];
    const at::Tensor made = slot.toTensor();
    const at::Tensor& out = given[i].toTensor();
    // As torch does for a result that it makes itself; not for one with gaps, which is a part.
    if (at::native::resize_output(out, made.sizes()) && made.is_non_overlapping_and_dense()) {
      out.as_strided_(made.sizes(), made.strides());
    }
    out.copy_(made);
    slot = out;
  }
}

}  // namespace coop
