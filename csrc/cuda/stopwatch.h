// Times operators by events in their stream.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "adapter/storage/stopwatch.h"

namespace coop {

class Streams;

// A timing is a pair of events. They are made when they are first needed, and used again.
class CudaStopwatch final : public Stopwatch {
 public:
  CudaStopwatch(c10::DeviceIndex device, const Streams& streams)
      : device_(device), streams_(streams) {}

  int32_t begin() override;
  void end(int32_t timing) override;
  double read(int32_t timing) override;
  void drop(int32_t timing) override { unused_.push_back(timing); }

 private:
  const c10::DeviceIndex device_;
  const Streams& streams_;
  std::vector<std::pair<cudaEvent_t, cudaEvent_t>> events_;
  std::vector<int32_t> unused_;
};

}  // namespace coop
