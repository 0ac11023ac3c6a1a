#include "cuda/stopwatch.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "cuda/streams.h"

namespace coop {

int32_t CudaStopwatch::begin() {
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = streams_.current();
  // What is captured does not run now.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) return -1;
  if (unused_.empty()) {
    auto& [first, second] = events_.emplace_back(nullptr, nullptr);
    unused_.push_back(static_cast<int32_t>(events_.size()) - 1);
    C10_CUDA_CHECK(cudaEventCreate(&first));
    C10_CUDA_CHECK(cudaEventCreate(&second));
  }
  const int32_t timing = unused_.back();
  unused_.pop_back();
  C10_CUDA_CHECK(cudaEventRecord(events_[timing].first, stream));
  return timing;
}

void CudaStopwatch::end(int32_t timing) {
  const c10::cuda::CUDAGuard guard(device_);
  C10_CUDA_CHECK(cudaEventRecord(events_[timing].second, streams_.current()));
}

double CudaStopwatch::read(int32_t timing) {
  const c10::cuda::CUDAGuard guard(device_);
  float ms = 0;
  const cudaError_t status =
      cudaEventElapsedTime(&ms, events_[timing].first, events_[timing].second);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return -1;
  }
  C10_CUDA_CHECK(status);
  return 1e6 * ms;
}

}  // namespace coop
