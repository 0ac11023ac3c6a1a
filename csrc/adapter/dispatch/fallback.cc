#include "adapter/dispatch/fallback.h"

#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <type_traits>

#include "adapter/call/handler.h"
#include "adapter/call/running.h"
#include "adapter/dispatch/python_first.h"
#include "adapter/dispatch/tuple_out.h"
#include "adapter/registry.h"
#include "adapter/trace/recorder.h"

namespace coop {

namespace {

// On the dispatcher's stack.
class BoxedInvocation final : public Invocation {
 public:
  using Run = std::function<void(torch::jit::Stack*)>;

  // `run`: how to run it instead, when its tensors are fake.
  BoxedInvocation(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack* stack,
                  const Run* run = nullptr)
      : info_(info),
        op_(op),
        stack_(*stack),
        run_(run),
        base_(stack->size() - info.arguments.size()),
        arguments_(stack->begin() + static_cast<std::ptrdiff_t>(base_), stack->end()) {}

  void for_each_tensor(Visitor visit) const override {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (info_.arguments[i] == ArgumentKind::kOther) continue;
      coop::for_each_tensor(arguments_[i], [&](const at::Tensor& tensor, int32_t list_index) {
        visit(tensor, static_cast<int32_t>(i), list_index);
      });
    }
  }

  c10::IValue argument(size_t index) const override { return arguments_[index]; }

  c10::Device device() const override {
    for (c10::IValue argument : arguments_) {
      if (argument.isTensorList() && !argument.toTensorList().empty()) {
        argument = at::Tensor(argument.toTensorList().get(0));
      }
      c10::Device device = c10::kCPU;
      if (argument.isTensor() && argument.toTensor().defined()) {
        device = argument.toTensor().device();
      } else if (argument.isDevice()) {
        device = argument.toDevice();
      }
      if (device.is_cuda()) return device;
    }
    return c10::kCPU;
  }

  void freeze(c10::SmallVectorImpl<c10::IValue>* arguments) const override {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const c10::IValue& argument = arguments_[i];
      if (info_.arguments[i] == ArgumentKind::kTensor) continue;
      if (info_.arguments[i] == ArgumentKind::kTensorList && argument.isList()) {
        // Its element type is needed to thaw it; the tensors are not.
        arguments->emplace_back(c10::impl::GenericList(argument.toList().elementType()));
      } else {
        arguments->push_back(argument);
      }
    }
  }

  void run(c10::DispatchKeySet keys) override {
    if (__builtin_expect(is_fake(), 0)) {
      (*run_)(&stack_);
    } else {
      op_.redispatchBoxed(keys, &stack_);
    }
  }

  bool is_fake() const override { return run_ != nullptr; }

  void for_each_result(ResultVisitor visit) const override {
    for (size_t i = stack_.size() - info_.num_results; i < stack_.size(); ++i) {
      coop::for_each_tensor(stack_[i], [&](const at::Tensor& tensor, int32_t) { visit(tensor); });
    }
  }

  c10::IValue last_result() const override {
    return info_.num_results == 0 ? c10::IValue() : stack_.back();
  }

  void reset() override {
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(base_), stack_.end());
    stack_.insert(stack_.end(), arguments_.begin(), arguments_.end());
  }

 private:
  const OpInfo& info_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const Run* run_;
  const size_t base_;
  const c10::SmallVector<c10::IValue, 12> arguments_;  // the operator takes those on the stack
};

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
