// An operator whose arguments are on a stack of the dispatcher's, and its results after it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <utility>
#include <vector>

#include "adapter/call/invocation.h"
#include "adapter/dispatch/op_info.h"

namespace coop {

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

  void set_results(std::vector<c10::IValue> results) override {
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(base_), stack_.end());
    for (c10::IValue& result : results) stack_.push_back(std::move(result));
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

}  // namespace coop
