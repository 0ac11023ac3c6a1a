#include "adapter/dispatch/fallback.h"

#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <type_traits>

#include "adapter/call/boxed_invocation.h"
#include "adapter/call/handler.h"
#include "adapter/call/running.h"
#include "adapter/dispatch/python_first.h"
#include "adapter/dispatch/tuple_out.h"
#include "adapter/registry.h"
#include "adapter/trace/recorder.h"

namespace coop {

namespace {

void handle(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (is_for_python(keys)) return call_python(op, keys, stack);
  const OpInfo& info = op_info(op);
  if (kTupleOutDangles && info.maker) return make_and_copy(*info.maker, info.num_results, stack);
  BoxedInvocation invocation(info, op, stack);
  Engine* engine = active_engine(invocation);
  if (engine == nullptr) {
    op.redispatchBoxed(below_us(keys), stack);
  } else {
    intercept(*engine, info, op, below_us(keys), invocation);
  }
}

}  // namespace

void intercept_fake(Engine& engine, const c10::OperatorHandle& op, torch::jit::Stack* stack,
                    const std::function<void(torch::jit::Stack*)>& run) {
  const OpInfo& info = op_info(op);
  // Python makes tensors on the way to a view.
  std::optional<Recorder::PauseScope> unrecorded;
  if (info.passes_through) unrecorded.emplace();
  BoxedInvocation invocation(info, op, stack, &run);
  intercept(engine, info, op, c10::DispatchKeySet(), invocation);
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&handle>()); }

// Views pass through as they are, and there are as many as other operators: the dispatcher does not
// even call us for these. (Not for detach, which AccumulateGrad calls.)
template <typename Op, typename Signature = typename Op::schema>
struct View;

template <typename Op, typename Result, typename... Arguments>
struct View<Op, Result(Arguments...)> {
  // Where torch would keep us out of what Python calls for it (python_first.h).
  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    if (!is_for_python(keys)) return Op::redispatch(below_us(keys), arguments...);
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return call_python_with<Result(Arguments...)>(op, keys, arguments...);
  }
};

template <typename... Ops>
void pass_through(torch::Library& library) {
  auto pass_one = [&]<typename Op>(std::type_identity<Op>) {
    const std::string overload = Op::overload_name;
    const std::string name = Op::name + (overload.empty() ? "" : "." + overload);
    if constexpr (kPythonIsBelowUs) {
      library.impl(name.c_str(), TORCH_FN(View<Op>::call));
    } else {
      library.impl(name.c_str(), torch::CppFunction::makeFallthrough());
    }
  };
  (pass_one(std::type_identity<Ops>()), ...);
}

TORCH_LIBRARY_IMPL(aten, Fake, m) {
  namespace ops = at::_ops;
  pass_through<ops::_unsafe_view, ops::alias, ops::as_strided, ops::diagonal, ops::expand,
               ops::permute, ops::select_int, ops::slice_Tensor, ops::split_Tensor,
               ops::split_with_sizes, ops::squeeze, ops::squeeze_dim, ops::squeeze_dims, ops::t,
               ops::transpose_int, ops::unbind_int, ops::unfold, ops::unsqueeze, ops::view>(m);
}

}  // namespace coop
