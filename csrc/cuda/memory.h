// The arena on a GPU: its region, and copies.
#pragma once

#include <memory>
#include <utility>

#include "adapter/storage/memory.h"
#include "cuda/pinned_memory.h"
#include "cuda/stopwatch.h"
#include "cuda/streams.h"

namespace coop {

// What the driver says is free, and there is in all.
std::pair<Bytes, Bytes> cuda_memory(int device);

// The region is taken when it is made, and kept for the life of the process: torch never gives up
// its allocator.
class CudaMemory final : public Memory {
 public:
  CudaMemory(Bytes bytes, c10::DeviceIndex device);

  c10::Device device() const override { return {c10::kCUDA, device_}; }
  char* base() const override { return base_; }
  Bytes reserved_bytes() const override { return bytes_; }
  void copy(void* to, const void* from, Bytes bytes) override;
  void discard(Bytes, Bytes) override {}
  // There is no memory outside of the arena.
  c10::DataPtr allocate_outside(Bytes) override { return {}; }
  std::unique_ptr<Stopwatch> make_stopwatch() override {
    return std::make_unique<CudaStopwatch>(device_, streams_);
  }

  bool on_main_stream() const override { return streams_.current() == streams_.main(); }
  void allocated(Storage* storage) override;
  void used(Storage* storage) override { streams_.use(storage, streams_.current()); }
  std::unique_ptr<Fence> after_last_use(Storage* storage) override {
    return streams_.after_last_use(storage);
  }

  Streams& streams() { return streams_; }
  // Room in main memory for copies of what is here.
  std::shared_ptr<HostMemory> make_pinned(Bytes bytes) {
    return pinned_ = std::make_shared<PinnedMemory>(bytes, device_, streams_);
  }

 private:
  const Bytes bytes_;
  const c10::DeviceIndex device_;
  char* base_ = nullptr;
  Streams streams_;
  std::shared_ptr<PinnedMemory> pinned_;  // null: there is none
};

}  // namespace coop
