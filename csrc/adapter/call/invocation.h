// An operator and its arguments, as the dispatcher handed them to us: on its stack (fallback.cc),
// or, for the operators of typed.cc, as the C++ arguments that they are.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace coop {

inline constexpr c10::DispatchKey kOurKey = c10::DispatchKey::Fake;

inline c10::DispatchKeySet below_us(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kOurKey);
}

// Calls f(tensor, index in its list or -1) for all tensors of an argument.
template <typename F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor(), -1);
  } else if (value.isTensorList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    for (size_t i = 0; i < list.size(); ++i) f(list[i].toTensor(), static_cast<int32_t>(i));
  } else if (value.isList()) {
    const auto& list = value.toListRef();
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].isTensor()) {
        f(list[i].toTensor(), static_cast<int32_t>(i));
      } else if (list[i].isNone()) {
        f(at::Tensor(), static_cast<int32_t>(i));
      } else {
        for_each_tensor(list[i], f);  // lists of lists: no recipe is made of them
      }
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, f);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) for_each_tensor(item.value(), f);
  }
}

class Invocation {
 public:
  // A tensor of an argument, undefined ones too; `list_index` is -1 for the argument itself.
  using Visitor = c10::function_ref<void(const at::Tensor&, int32_t argument, int32_t list_index)>;
  using ResultVisitor = c10::function_ref<void(const at::Tensor&)>;

  virtual void for_each_tensor(Visitor visit) const = 0;
  virtual c10::IValue argument(size_t index) const = 0;
  // The device of the first argument that has one of its own; main memory when there is none.
  virtual c10::Device device() const = 0;
  // The arguments that are not tensors, as a recipe keeps them (Rule 2); lists of tensors without
  // their elements.
  virtual void freeze(c10::SmallVectorImpl<c10::IValue>* arguments) const = 0;

  // Runs the operator; its results stay here. Again only after a reset().
  virtual void run(c10::DispatchKeySet keys) = 0;
  // Its tensors have no bytes, and Python runs it.
  virtual bool is_fake() const { return false; }
  virtual void for_each_result(ResultVisitor visit) const = 0;
  // The last one, which need not be a tensor; none where all results are tensors anyway.
  virtual c10::IValue last_result() const { return {}; }
  // Lets go of the tensors `may_die(index)` that it would otherwise need to run again, so that they
  // can die while it runs. False: it needs them.
  virtual bool let_go(c10::function_ref<bool(size_t)>) { return false; }
  virtual bool wants_to_let_go() const { return false; }
  // It was run in parts, and these are its results (parts.h).
  virtual void set_results(std::vector<c10::IValue>) {}
  // Drops the results, and whatever the operator has left of its arguments.
  virtual void reset() = 0;

 protected:
  ~Invocation() = default;
};

}  // namespace coop
