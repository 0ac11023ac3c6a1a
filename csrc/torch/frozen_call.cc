#include "torch/frozen_call.h"

#include <ATen/ATen.h>

namespace coop {

void FrozenTensor::set(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  geometry.set_sizes(tensor.sizes());
  geometry.set_strides(tensor.strides());
  offset = tensor.storage_offset();
  dtype = impl->dtype();
  keys = impl->key_set();
  device = impl->device();
  wrapped_number = impl->is_wrapped_number();
}

at::Tensor FrozenTensor::thaw(c10::Storage storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, dtype);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(geometry.sizes_arrayref(), geometry.strides_arrayref(), offset);
  if (wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

}  // namespace coop
