// A record as torch sees it: an operator with its arguments, frozen so that it can run again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/SizesAndStrides.h>
#include <c10/util/SmallVector.h>

#include "core/graph.h"
#include "torch/flags.h"
#include "torch/op_info.h"
#include "torch/rng.h"

namespace coop {

// Rule 2: geometry over a value, never a tensor that would keep bytes alive.
struct FrozenTensor {
  c10::impl::SizesAndStrides geometry;
  int64_t offset = 0;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
  c10::Device device = c10::kCPU;
  bool wrapped_number = false;
  int32_t argument = 0;
  int32_t list_index = -1;  // in a list of tensors; -1: the argument itself
  int32_t input = -1;       // the value it reads: index into Record::inputs; -1: none
  int32_t write = -1;       // the value it becomes: index into the written outputs; -1: none
  Bytes storage_bytes = 0;  // of its storage: what is too small for a result is replaced
  Bytes scratch_bytes = 0;  // without input: uninitialized memory of so many bytes
  bool copy = false;        // written, but only a copy of it may be
  bool defined = true;

  void set(const c10::TensorImpl& tensor);
  at::Tensor thaw(c10::Storage storage) const;
};

struct FrozenCall final : Record {
  explicit FrozenCall(const c10::OperatorHandle& op) : op(op) {}

  // One is made for most operators, and is too large for malloc's fast path.
  static void* operator new(size_t bytes);
  static void operator delete(void* memory);

  c10::OperatorHandle op;
  const OpInfo* info = nullptr;
  c10::DispatchKeySet keys;                     // as dispatched, below our own
  c10::impl::LocalDispatchKeySet dispatch{{}};  // the thread's, as it was
  Flags flags;
  RngState rng;
  Side side = Side::kRight;
  size_t num_fresh = 0;
  // As long as those of convolutions and norms, so that they need no memory of their own.
  c10::SmallVector<c10::IValue, 12> arguments;  // tensors left out
  c10::SmallVector<FrozenTensor, 8> tensors;
};

}  // namespace coop
