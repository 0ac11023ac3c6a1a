// A recipe as torch sees it: an operator with its arguments, frozen so that it can run again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "adapter/call/rng.h"
#include "adapter/dispatch/flags.h"
#include "adapter/dispatch/op_info.h"
#include "core/model/value.h"

namespace coop {

// The sizes and strides of several tensors, one after the other: most have few dimensions, and all
// of it is written for every operator.
using Dimensions = c10::SmallVector<int64_t, 40>;

// Rule 2: geometry over a value, never a tensor that would keep bytes alive.
struct FrozenTensor {
  // An undefined one.
  FrozenTensor() = default;
  // Its dimensions are added to `dimensions`, which it has to be given again.
  FrozenTensor(const c10::TensorImpl& tensor, Dimensions* dimensions);
  // The same tensor, with other dimensions beside it.
  FrozenTensor(const FrozenTensor& other, const Dimensions& from, Dimensions* to);

  c10::IntArrayRef sizes(const Dimensions& dimensions) const {
    return {dimensions.data() + first_dimension, num_dimensions};
  }
  c10::IntArrayRef strides(const Dimensions& dimensions) const {
    return {dimensions.data() + first_dimension + num_dimensions, num_dimensions};
  }
  at::Tensor thaw(c10::Storage storage, const Dimensions& dimensions) const;

  int64_t offset = 0;
  c10::DispatchKeySet keys;
  Bytes storage_bytes = 0;  // of its storage: what is too small for a result is replaced
  Bytes scratch_bytes = 0;  // without input: uninitialized memory of so many bytes
  uint32_t first_dimension = 0;
  uint32_t num_dimensions = 0;
  int32_t argument = 0;
  int32_t list_index = -1;  // in a list of tensors; -1: the argument itself
  int32_t input = -1;       // the value it reads: index into Recipe::inputs; -1: none
  int32_t write = -1;       // the value it becomes: index into the written outputs; -1: none
  caffe2::TypeMeta dtype;
  c10::Device device = c10::kCPU;
  bool wrapped_number = false;
  bool copy = false;  // written, but only a copy of it may be
  bool defined = false;
};
static_assert(sizeof(FrozenTensor) == 64, "one cache line: an operator writes several");

struct FrozenCall final : Recipe {
  explicit FrozenCall(const c10::OperatorHandle& op) : op(op) {}
  void replay(Host& host, Storage** made) override;
  void retire(Host& host) override;

  // What running it again needs.
  c10::OperatorHandle op;
  const OpInfo* info = nullptr;
  c10::DispatchKeySet keys;                     // as dispatched, below our own
  c10::impl::LocalDispatchKeySet dispatch{{}};  // the thread's, as it was
  Flags flags;
  RngState rng;
  uint32_t num_fresh = 0;
  Side side = Side::kRight;
  // As long as those of convolutions and norms, so that they need no memory of their own.
  c10::SmallVector<c10::IValue, 8> arguments;  // those that are not tensors
  FixedArray<FrozenTensor, 8> tensors;
  Dimensions dimensions;  // of the tensors

  // What making one, or its destructor, touches of its memory when it has few tensors. There may be
  // no object in it.
  static void prefetch(const void* memory);
};

}  // namespace coop
