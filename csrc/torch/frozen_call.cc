#include "torch/frozen_call.h"

#include <ATen/ATen.h>

#include <mutex>
#include <vector>

namespace coop {

namespace {

struct Pool {
  std::mutex mutex;
  std::vector<void*> unused;
};

Pool& pool() {
  static auto* instance = new Pool();
  return *instance;
}

constexpr size_t kMostUnused = 1 << 14;

}  // namespace

void* FrozenCall::operator new(size_t bytes) {
  {
    const std::lock_guard<std::mutex> guard(pool().mutex);
    if (!pool().unused.empty()) {
      void* memory = pool().unused.back();
      pool().unused.pop_back();
      return memory;
    }
  }
  return ::operator new(bytes);
}

void FrozenCall::operator delete(void* memory) {
  {
    const std::lock_guard<std::mutex> guard(pool().mutex);
    if (pool().unused.size() < kMostUnused) {
      pool().unused.push_back(memory);
      return;
    }
  }
  ::operator delete(memory);
}

void FrozenTensor::set(const c10::TensorImpl& tensor) {
  geometry.set_sizes(tensor.sizes());
  geometry.set_strides(tensor.strides());
  offset = tensor.storage_offset();
  dtype = tensor.dtype();
  keys = tensor.key_set();
  device = tensor.device();
  wrapped_number = tensor.is_wrapped_number();
}

at::Tensor FrozenTensor::thaw(c10::Storage storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, dtype);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(geometry.sizes_arrayref(), geometry.strides_arrayref(), offset);
  if (wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

}  // namespace coop
