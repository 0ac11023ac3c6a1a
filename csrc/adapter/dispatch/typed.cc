// The operators that training runs most often, taken as C++ arguments: through the fallback torch
// boxes all arguments, and unboxes them again below us, which takes half as long as the engine.
#include <ATen/Operators.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "adapter/call/handler.h"
#include "adapter/dispatch/python_first.h"
#include "adapter/registry.h"

namespace coop {

namespace {

// --- one argument, by its type

// Overloads for lists take any that converts, which those for other types would otherwise win.
template <typename T>
constexpr bool kIsTensorList = std::is_convertible_v<const T&, at::ITensorListRef>;

void visit(const at::Tensor& tensor, int32_t argument, Invocation::Visitor visitor) {
  visitor(tensor, argument, -1);
}
void visit(const std::optional<at::Tensor>& tensor, int32_t argument, Invocation::Visitor visitor) {
  if (tensor.has_value()) visitor(*tensor, argument, -1);
}
void visit(at::TensorList list, int32_t argument, Invocation::Visitor visitor) {
  int32_t index = 0;
  for (const at::Tensor& tensor : list) visitor(tensor, argument, index++);
}
void visit(const at::ITensorListRef& list, int32_t argument, Invocation::Visitor visitor) {
  int32_t index = 0;
  for (const at::Tensor& tensor : list) visitor(tensor, argument, index++);
}
template <typename T>
  requires(!kIsTensorList<T>)
void visit(const T&, int32_t, Invocation::Visitor) {}

c10::Device argument_device(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.device() : c10::kCPU;
}
c10::Device argument_device(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? argument_device(*tensor) : c10::kCPU;
}
c10::Device argument_device(const at::ITensorListRef& list) {
  return list.empty() ? c10::kCPU : argument_device(*list.begin());
}
c10::Device argument_device(const std::optional<c10::Device>& device) {
  return device.value_or(c10::kCPU);
}
template <typename T>
  requires(!kIsTensorList<T>)
c10::Device argument_device(const T&) {
  return c10::kCPU;
}

// A list of torch's takes three allocations, and the same few (a stride, a padding) come with every
// operator. Nobody writes to an argument, so equal lists may be one.
c10::IValue boxed(c10::IntArrayRef list) {
  constexpr size_t kMost = 4;
  struct Entry {
    std::array<int64_t, kMost> items{};
    size_t size = 0;
    c10::IValue boxed;  // None: not used yet
  };
  static thread_local std::array<Entry, 64> cache;
  if (list.size() > kMost) return list;
  uint64_t hash = list.size();
  for (const int64_t item : list) hash = (hash + static_cast<uint64_t>(item)) * 0x9E3779B97F4A7C15;
  Entry& entry = cache[hash >> 58];
  if (entry.boxed.isNone() || entry.size != list.size() ||
      !std::equal(list.begin(), list.end(), entry.items.begin())) {
    entry.size = list.size();
    std::copy(list.begin(), list.end(), entry.items.begin());
    entry.boxed = list;
  }
  return entry.boxed;
}
c10::IValue boxed(c10::SymIntArrayRef list) {
  if (const auto integers = c10::asIntArrayRefSlowOpt(list)) return boxed(*integers);
  return list;
}
template <typename T>
c10::IValue boxed(const c10::OptionalArrayRef<T>& list) {
  return list.has_value() ? boxed(*list) : c10::IValue();
}
c10::IValue boxed(const std::array<bool, 3>& mask) {
  static thread_local std::array<c10::IValue, 8> cache;
  c10::IValue& entry = cache[mask[0] + 2 * mask[1] + 4 * mask[2]];
  if (entry.isNone()) entry = mask;
  return entry;
}
template <typename T>
c10::IValue boxed(const T& argument) {
  return argument;
}

using Frozen = c10::SmallVectorImpl<c10::IValue>;

void freeze_into(Frozen*, const at::Tensor&) {}
void freeze_into(Frozen*, const std::optional<at::Tensor>&) {}
void freeze_into(Frozen* frozen, const at::ITensorListRef&) {
  frozen->emplace_back(c10::impl::GenericList(c10::TensorType::get()));
}
template <typename T>
  requires(!kIsTensorList<T>)
void freeze_into(Frozen* frozen, const T& argument) {
  frozen->push_back(boxed(argument));
}

// --- the operator

template <typename T>  // a count, or a seed, among the results
void visit_result(const T&, Invocation::ResultVisitor) {}
void visit_result(const at::Tensor& result, Invocation::ResultVisitor visitor) { visitor(result); }
template <typename... T>
void visit_result(const std::tuple<T...>& results, Invocation::ResultVisitor visitor) {
  std::apply([&](const auto&... result) { (visit_result(result, visitor), ...); }, results);
}

// An operator of at::_ops with its arguments.
template <typename Op, typename Signature = typename Op::schema>
class Typed;

template <typename Op, typename Result, typename... Arguments>
class Typed<Op, Result(Arguments...)> final : public Invocation {
 public:
  // What the dispatcher calls for the operator.
  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const OpInfo& info = op_info(op);
    if constexpr (kPythonIsBelowUs) {
      if (is_for_python(keys)) {
        return call_python_with<Result(Arguments...)>(op, keys, arguments...);
      }
    }
    Typed invocation(arguments...);
    if (Engine* engine = active_engine(invocation)) {
      intercept(*engine, info, op, below_us(keys), invocation);
    } else {
      invocation.run(below_us(keys));
    }
    return invocation.take_result();
  }

  void for_each_tensor(Visitor visitor) const override {
    for_each([&](const auto& argument, int32_t index) { visit(argument, index, visitor); });
  }

  c10::IValue argument(size_t wanted) const override {
    c10::IValue result;
    for_each([&](const auto& argument, int32_t index) {
      if (static_cast<size_t>(index) == wanted) result = boxed(argument);
    });
    return result;
  }

  c10::Device device() const override {
    c10::Device result = c10::kCPU;
    for_each([&](const auto& argument, int32_t) {
      if (!result.is_cuda()) result = argument_device(argument);
    });
    return result.is_cuda() ? result : c10::kCPU;
  }

  void freeze(c10::SmallVectorImpl<c10::IValue>* arguments) const override {
    for_each([&](const auto& argument, int32_t) { freeze_into(arguments, argument); });
  }

  void run(c10::DispatchKeySet keys) override {
    std::apply(
        [&](auto&... argument) {
          if constexpr (std::is_void_v<Result>) {
            Op::redispatch(keys, argument...);
          } else if constexpr (std::is_reference_v<Result>) {
            result_ = &Op::redispatch(keys, argument...);
          } else {
            result_ = Op::redispatch(keys, argument...);
          }
        },
        arguments_);
  }

  void for_each_result(ResultVisitor visitor) const override {
    if constexpr (!std::is_void_v<Result>) visit_result(*result_, visitor);
  }

  void reset() override { result_ = {}; }

 private:
  // An operator that works in place returns its argument, one on lists nothing.
  using Kept = std::conditional_t<
      std::is_void_v<Result>, std::monostate,
      std::conditional_t<std::is_reference_v<Result>, std::remove_reference_t<Result>*,
                         std::optional<Result>>>;

  explicit Typed(Arguments&... arguments) : arguments_(arguments...) {}

  template <typename F>
  void for_each(F&& f) const {
    std::apply(
        [&](const auto&... argument) {
          int32_t index = 0;
          (f(argument, index++), ...);
        },
        arguments_);
  }

  Result take_result() {
    if constexpr (std::is_reference_v<Result>) {
      return *result_;
    } else if constexpr (!std::is_void_v<Result>) {
      return *std::move(result_);
    }
  }

  std::tuple<Arguments&...> arguments_;
  Kept result_{};
};

template <typename... Ops>
void take(torch::Library& library) {
  auto take_one = [&]<typename Op>(std::type_identity<Op>) {
    const std::string overload = Op::overload_name;
    const std::string name = Op::name + (overload.empty() ? "" : "." + overload);
    library.impl(name.c_str(), TORCH_FN(Typed<Op>::call));
  };
  (take_one(std::type_identity<Ops>()), ...);
}

TORCH_LIBRARY_IMPL(aten, Fake, m) {
  namespace ops = at::_ops;
  take<ops::_fused_adamw_, ops::_log_softmax, ops::_log_softmax_backward_data,
       ops::_scaled_dot_product_cudnn_attention, ops::_scaled_dot_product_cudnn_attention_backward,
       ops::_scaled_dot_product_efficient_attention,
       ops::_scaled_dot_product_efficient_attention_backward,
       ops::_scaled_dot_product_flash_attention, ops::_scaled_dot_product_flash_attention_backward,
       ops::_softmax, ops::_softmax_backward_data, ops::_to_copy, ops::add_Tensor, ops::add__Tensor,
       ops::addmm, ops::bmm, ops::cat, ops::clone, ops::convolution, ops::convolution_backward,
       ops::copy_, ops::cudnn_batch_norm, ops::cudnn_batch_norm_backward, ops::detach,
       ops::div_Tensor, ops::div__Scalar, ops::empty_memory_format, ops::embedding,
       ops::embedding_dense_backward, ops::fill__Scalar, ops::gelu, ops::gelu_backward,
       ops::mean_dim, ops::mm, ops::mul_Scalar, ops::mul_Tensor, ops::mul__Tensor,
       ops::native_batch_norm, ops::native_batch_norm_backward, ops::native_dropout,
       ops::native_dropout_backward, ops::native_layer_norm, ops::native_layer_norm_backward,
       ops::relu, ops::relu_, ops::sigmoid, ops::sigmoid_backward, ops::silu, ops::silu_backward,
       ops::stack, ops::sub_Tensor, ops::sum_dim_IntList, ops::tanh, ops::tanh_backward,
       ops::threshold_backward, ops::zero_>(m);
}

}  // namespace

}  // namespace coop
