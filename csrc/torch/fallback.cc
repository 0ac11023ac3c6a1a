// Operators as the dispatcher's fallback gets them: any, with their arguments on a stack.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>
#include <optional>

#include "torch/engine.h"
#include "torch/running.h"
#include "torch/tuple_out.h"

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
  const OpInfo& info = op_info(op);
  if (kTupleOutDangles && info.maker) return make_and_copy(*info.maker, info.num_results, stack);
  BoxedInvocation invocation(info, op, stack);
  Engine* engine = active_engine(invocation);
  if (engine == nullptr) {
    op.redispatchBoxed(below_us(keys), stack);
  } else {
    engine->intercept(info, op, below_us(keys), invocation);
  }
}

}  // namespace

void Engine::intercept_fake(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                            const std::function<void(torch::jit::Stack*)>& run) {
  const OpInfo& info = op_info(op);
  // Python makes tensors on the way to a view.
  std::optional<Recorder::PauseScope> unrecorded;
  if (info.passes_through) unrecorded.emplace();
  BoxedInvocation invocation(info, op, stack, &run);
  intercept(info, op, c10::DispatchKeySet(), invocation);
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&handle>()); }

// Views pass through as they are, and there are as many as other operators: the dispatcher does not
// even call us for these. (Not for detach, which AccumulateGrad calls.)
TORCH_LIBRARY_IMPL(aten, Fake, m) {
  for (const char* view :
       {"_unsafe_view", "alias", "as_strided", "diagonal", "expand", "permute", "select.int",
        "slice.Tensor", "split.Tensor", "split_with_sizes", "squeeze", "squeeze.dim",
        "squeeze.dims", "t", "transpose.int", "unbind.int", "unfold", "unsqueeze", "view"}) {
    m.impl(view, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace coop
