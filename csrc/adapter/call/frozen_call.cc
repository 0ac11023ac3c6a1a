#include "adapter/call/frozen_call.h"

#include <ATen/ATen.h>

#include <cstddef>

#include "adapter/call/attend.h"
#include "adapter/call/replay.h"
#include "adapter/engine.h"
#include "core/prefetch.h"

namespace coop {

void FrozenCall::prefetch(const void* memory) {
  const auto* begin = static_cast<const std::byte*>(memory);
  // It has no virtual bases, so that compilers know its layout all the same.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kOp = offsetof(FrozenCall, op);
  constexpr size_t kTensors = offsetof(FrozenCall, tensors);
  constexpr size_t kDimensions = offsetof(FrozenCall, dimensions);
#pragma GCC diagnostic pop
  prefetch_range(begin, 192);
  prefetch_range(begin + kOp, 192);  // and the first arguments
  prefetch_range(begin + kTensors, 192);
  prefetch_range(begin + kDimensions, 128);
}

void FrozenCall::replay(Host& host, Storage** made) {
  Engine& engine = TorchHost::engine_of(host);
  attend(engine);
  Replay(engine, *this, made).run();
}

void FrozenCall::retire(Host& host) { TorchHost::engine_of(host).recipes().retire(this); }

FrozenTensor::FrozenTensor(const c10::TensorImpl& tensor, Dimensions* dimensions)
    : offset(tensor.storage_offset()),
      keys(tensor.key_set()),
      first_dimension(static_cast<uint32_t>(dimensions->size())),
      dtype(tensor.dtype()),
      device(tensor.device()),
      wrapped_number(tensor.is_wrapped_number()),
      defined(true) {
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  num_dimensions = static_cast<uint32_t>(sizes.size());
  dimensions->resize_for_overwrite(first_dimension + 2 * sizes.size());
  int64_t* own = dimensions->data() + first_dimension;
  for (size_t i = 0; i < sizes.size(); ++i) {
    own[i] = sizes[i];
    own[sizes.size() + i] = strides[i];
  }
}

FrozenTensor::FrozenTensor(const FrozenTensor& other, const Dimensions& from, Dimensions* to)
    : FrozenTensor(other) {
  first_dimension = static_cast<uint32_t>(to->size());
  const int64_t* first = from.data() + other.first_dimension;
  to->append(first, first + 2 * num_dimensions);
}

at::Tensor FrozenTensor::thaw(c10::Storage storage, const Dimensions& dimensions) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, dtype);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes(dimensions), strides(dimensions), offset);
  if (wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

}  // namespace coop
