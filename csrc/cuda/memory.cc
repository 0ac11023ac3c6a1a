#include "cuda/memory.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <string>

namespace coop {

std::pair<Bytes, Bytes> cuda_memory(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<Bytes>(free_bytes), static_cast<Bytes>(total_bytes)};
}

CudaMemory::CudaMemory(Bytes bytes, c10::DeviceIndex device)
    : bytes_(bytes), device_(device), streams_(device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto [free_bytes, total_bytes] = cuda_memory(device);
  // Messages are whole strings: a number put into torch's stream ends the process where the
  // compiler links a C++ library of its own into the extension (seen with one).
  TORCH_CHECK(bytes <= free_bytes, "coop: a budget of " + std::to_string(bytes) +
                                       " bytes does not fit this GPU, which has " +
                                       std::to_string(free_bytes) + " of its " +
                                       std::to_string(total_bytes) +
                                       " bytes free: choose less, or a share such as 80%");
  void* base = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&base, static_cast<size_t>(bytes)));
  base_ = static_cast<char*>(base);
}

void CudaMemory::copy(void* to, const void* from, Bytes bytes) {
  // The handle of a default stream is 0, which means the current device's.
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = streams_.current();
  if (pinned_ != nullptr) {
    pinned_->drop_marks();
    pinned_->before_reuse(static_cast<const std::byte*>(to), bytes);
    pinned_->before_use(static_cast<const std::byte*>(from), bytes);
  }
  // The main stream may have used the block before, and will read it.
  streams_.wait(stream, streams_.main());
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
  streams_.wait(streams_.main(), stream);
}

// A block that the main stream freed is taken by another stream, which must wait for it.
void CudaMemory::allocated(Storage* storage) {
  const cudaStream_t stream = streams_.current();
  if (stream == streams_.main()) return;
  const c10::cuda::CUDAGuard guard(device_);
  streams_.wait(stream, streams_.main());
  streams_.use(storage, stream);
}

}  // namespace coop
