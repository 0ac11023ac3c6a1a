// The tensors among the arguments of a running operator: geometry over storages.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "adapter/call/frozen_call.h"
#include "adapter/call/invocation.h"
#include "adapter/dispatch/op_info.h"

namespace coop {

// One of them. Small: an optimizer's operator has thousands.
struct TensorArgument {
  c10::TensorImpl* tensor = nullptr;  // null: undefined, or not understood
  c10::StorageImpl* impl = nullptr;
  Storage* storage = nullptr;  // null: external
  Value* value = nullptr;      // its content when the operator began; the storage may die meanwhile
  size_t storage_bytes = 0;    // before the operator ran: it may resize
  size_t end_bytes = 0;        // where its last element ends in its storage
  int32_t argument = 0;
  int32_t list_index = -1;  // in a list of tensors; -1: the argument itself
  int32_t before = -1;      // index into Operands::before; -1: the operator changes no geometry
  bool dense = false;       // every element has bytes of its own, with none between them
  bool written = false;
  bool parameter = false;  // a leaf with a gradient: what is written to it stays (Rule 11)
  bool scalar = false;     // one element at most
  bool shared = false;     // others may write its memory unseen

  bool has_bytes() const { return impl != nullptr && storage_bytes > 0; }
};

struct Operands {
  // All tensors of the arguments. `keeps_geometry`: what the operator may resize is remembered as
  // it is now. Not under the lock: a tensor may be one of Python's, which is asked for its sizes.
  void add_all(const OpInfo& info, const Invocation& invocation, bool keeps_geometry);
  // Whether the operator writes all `bytes` of the tensor's storage, as far as geometry tells.
  bool covers(const TensorArgument& tensor, Bytes bytes) const;
  // Gives those their old sizes back that the operator has resized without getting them memory.
  void restore_sizes() const;
  void clear();

  std::vector<TensorArgument> tensors;
  std::vector<at::Tensor> parts;     // what those are made of that are not understood
  std::vector<FrozenTensor> before;  // those that it may resize, as they were
  Dimensions before_dimensions;
  std::vector<Storage*> storages;  // those in the arena
  bool fake = false;               // they have no bytes, and Python runs the operator
  bool understood = true;          // all of them can be frozen
  double bytes_moved = 0;
  bool half = false;  // some elements have two bytes

 private:
  void add(const at::Tensor& tensor, int32_t argument, int32_t list_index, bool written);

  bool keeps_geometry_ = false;
};

}  // namespace coop
