#include "adapter/call/operands.h"

#include <ATen/ATen.h>

#include "adapter/dispatch/tensor_kinds.h"

namespace coop {

namespace {

// Where the last of its elements ends in its storage.
size_t end_bytes(const at::Tensor& tensor, int64_t numel, bool dense) {
  if (numel == 0) return 0;
  int64_t last = tensor.storage_offset();
  if (dense) {
    last += numel - 1;
  } else {
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  }
  return static_cast<size_t>(last + 1) * tensor.itemsize();
}

}  // namespace

void Operands::add_all(const OpInfo& info, const Invocation& invocation, bool keeps_geometry) {
  fake = invocation.is_fake();
  keeps_geometry_ = keeps_geometry;
  bool writes = info.has_writes;
  if (info.training_argument >= 0) {
    const c10::IValue training = invocation.argument(info.training_argument);
    writes = training.isBool() && training.toBool();
  }
  // Of a fused update the second list are the gradients, which it writes as it unscales them.
  const bool unscales =
      info.scale_argument < 0 || !invocation.argument(info.scale_argument).isNone();
  invocation.for_each_tensor([&](const at::Tensor& tensor, int32_t argument, int32_t list_index) {
    const bool written = writes && info.writes[argument] && (argument != 1 || unscales);
    add(tensor, argument, list_index, written);
  });
}

void Operands::add(const at::Tensor& tensor, int32_t argument, int32_t list_index, bool written) {
  TensorArgument& entry = tensors.emplace_back();
  entry.argument = argument;
  entry.list_index = list_index;
  entry.written = written;
  if (!tensor.defined()) return;
  if (written && list_index < 0) entry.parameter = tensor.requires_grad() && tensor.is_leaf();
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!is_understood(impl, fake) || !impl.has_storage()) {
    // What it is made of is used, but the operator gets no recipe: see Note [Kinds of tensors].
    understood = false;
    if (impl.has_storage()) {
      entry.impl = impl.unsafe_storage().unsafeGetStorageImpl();
      entry.storage_bytes = entry.impl->sym_nbytes().maybe_as_int().value_or(0);
    }
    for_each_part(tensor, [&](const at::Tensor& part) {
      // Torch makes some of the parts for us, and their sizes are not the tensor's.
      const size_t index = tensors.size();
      add(part, argument, list_index, written);
      tensors[index].tensor = nullptr;
      tensors[index].before = -1;
      parts.push_back(part);
    });
    return;
  }
  entry.tensor = tensor.unsafeGetTensorImpl();
  if (keeps_geometry_) {
    entry.before = static_cast<int32_t>(before.size());
    before.emplace_back(*entry.tensor, &before_dimensions);
  }
  entry.impl = tensor.storage().unsafeGetStorageImpl();
  entry.storage_bytes = entry.impl->nbytes();
  entry.dense = tensor.is_non_overlapping_and_dense();
  const int64_t numel = tensor.numel();
  entry.scalar = numel <= 1;
  entry.end_bytes = end_bytes(tensor, numel, entry.dense);
  bytes_moved += static_cast<double>(numel) * static_cast<double>(tensor.itemsize());
  half |= tensor.itemsize() == 2;
}

bool Operands::covers(const TensorArgument& tensor, Bytes bytes) const {
  if (!tensor.written || !tensor.dense || tensor.before < 0) return false;
  const FrozenTensor& frozen = before[tensor.before];
  const Bytes covered = c10::multiply_integers(frozen.sizes(before_dimensions)) *
                        static_cast<Bytes>(frozen.dtype.itemsize());
  return frozen.offset == 0 && covered == bytes;
}

// Torch gives a tensor that it resizes (`out=`) its new sizes first. If there was no room for its
// new memory, nobody must write its old memory as if it were the new one.
void Operands::restore_sizes() const {
  for (const TensorArgument& entry : tensors) {
    if (!entry.written || entry.before < 0) continue;
    const FrozenTensor& frozen = before[entry.before];
    const c10::IntArrayRef sizes = frozen.sizes(before_dimensions);
    const c10::IntArrayRef strides = frozen.strides(before_dimensions);
    if (entry.tensor->sizes() == sizes && entry.tensor->strides() == strides) continue;
    const c10::StorageImpl* impl = entry.tensor->unsafe_storage().unsafeGetStorageImpl();
    if (impl != entry.impl || impl->nbytes() != entry.storage_bytes) continue;
    entry.tensor->set_sizes_and_strides(sizes, strides, frozen.offset);
  }
}

void Operands::clear() {
  tensors.clear();
  parts.clear();
  before.clear();
  before_dimensions.clear();
  storages.clear();
  understood = true;
  bytes_moved = 0;
  half = false;
}

}  // namespace coop
