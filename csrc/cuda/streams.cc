#include "cuda/streams.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>

namespace coop {

namespace {

cudaError_t make_event(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}

// Passed when all of its events have been.
class EventFence final : public Fence {
 public:
  EventFence(Events& events, std::vector<cudaEvent_t> recorded)
      : events_(events), recorded_(std::move(recorded)) {}
  ~EventFence() override {
    for (const cudaEvent_t event : recorded_) events_.give_back(event);
  }
  EventFence(const EventFence&) = delete;
  EventFence& operator=(const EventFence&) = delete;

  bool passed(bool wait) override {
    for (const cudaEvent_t event : recorded_) {
      const cudaError_t status = wait ? cudaEventSynchronize(event) : cudaEventQuery(event);
      if (status == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
      }
      C10_CUDA_CHECK(status);
    }
    return true;
  }

 private:
  Events& events_;
  const std::vector<cudaEvent_t> recorded_;
};

}  // namespace

cudaEvent_t Events::take() {
  if (!unused_.empty()) return take_or_null();
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(make_event(&event));
  return event;
}

cudaEvent_t Events::take_or_null() {
  cudaEvent_t event = nullptr;
  if (unused_.empty()) return make_event(&event) == cudaSuccess ? event : nullptr;
  event = unused_.back();
  unused_.pop_back();
  return event;
}

Streams::Streams(c10::DeviceIndex device)
    : device_(device), main_(c10::cuda::getDefaultCUDAStream(device).stream()) {}

cudaStream_t Streams::current() const { return c10::cuda::getCurrentCUDAStream(device_).stream(); }

cudaEvent_t Streams::record(cudaStream_t stream) {
  const cudaEvent_t event = events_.take();
  C10_CUDA_CHECK(cudaEventRecord(event, stream));
  return event;
}

void Streams::wait(cudaStream_t stream, cudaStream_t other) {
  if (stream == other) return;
  const cudaEvent_t event = record(other);
  C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
  events_.give_back(event);
}

void Streams::use(const Storage* storage, cudaStream_t stream) {
  if (stream == main_) return;
  std::vector<cudaStream_t>& streams = users_[storage];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
}

std::unique_ptr<Fence> Streams::after_last_use(const Storage* storage) {
  if (users_.empty()) return nullptr;
  const auto found = users_.find(storage);
  if (found == users_.end()) return nullptr;
  const std::vector<cudaStream_t> streams = std::move(found->second);
  users_.erase(found);
  int current = -1;
  (void)cudaGetDevice(&current);
  (void)cudaSetDevice(device_);
  bool is_recorded = true;
  std::vector<cudaEvent_t> events;
  for (const cudaStream_t stream : streams) {
    const cudaEvent_t event = events_.take_or_null();
    is_recorded &= event != nullptr && cudaEventRecord(event, stream) == cudaSuccess;
    if (event != nullptr) events.push_back(event);
  }
  auto fence = std::make_unique<EventFence>(events_, std::move(events));
  if (!is_recorded) {
    // The GPU is gone (the process ends), or failing: what still runs there is waited for.
    (void)cudaDeviceSynchronize();
    (void)cudaGetLastError();
    fence = nullptr;
  }
  if (current >= 0) (void)cudaSetDevice(current);
  return fence;
}

}  // namespace coop
