#include "cuda/cuda_arena.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapter/registry.h"

namespace coop {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// Memory is reused in the order of the default stream. What another stream uses comes back only
// when an event says that stream is done with it; nothing here waits for the GPU, except an
// allocation that would otherwise fail.
class CudaMemory final : public Memory {
 public:
  CudaMemory(Bytes bytes, c10::DeviceIndex device) : bytes_(bytes), device_(device) {
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
    C10_CUDA_CHECK(cudaMalloc(&base, bytes));
    base_ = static_cast<char*>(base);
    stream_ = c10::cuda::getDefaultCUDAStream(device).stream();
  }

  c10::Device device() const override { return {c10::kCUDA, device_}; }
  char* base() const override { return base_; }
  Bytes reserved_bytes() const override { return bytes_; }
  void copy(void* to, const void* from, Bytes bytes) override {
    // The handle of a default stream is 0, which means the current device's.
    const c10::cuda::CUDAGuard guard(device_);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
    // The default stream may have used the block before, and will read it.
    wait(stream, stream_);
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    wait(stream_, stream);
  }
  void discard(Bytes, Bytes) override {}
  // There is no memory outside of the arena.
  c10::DataPtr allocate_outside(Bytes) override { return {}; }

  bool on_main_stream() const override {
    return c10::cuda::getCurrentCUDAStream(device_).stream() == stream_;
  }

  // A block that the default stream freed is taken by another stream, which must wait for it; and
  // its end is known only by an event.
  void allocated(Storage* storage) override {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
    if (stream == stream_) return;
    const c10::cuda::CUDAGuard guard(device_);
    wait(stream, stream_);
    streams_[storage].push_back(stream);
  }

  void used(Storage* storage) override {
    used_by(storage, c10::cuda::getCurrentCUDAStream(device_).stream());
  }

  void used_by(Storage* storage, cudaStream_t stream) {
    if (stream == stream_) return;
    std::vector<cudaStream_t>& streams = streams_[storage];
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  }

  // Called by deleters, which must not throw.
  bool defer(Storage* storage) override {
    if (streams_.empty()) return false;
    const auto found = streams_.find(storage);
    if (found == streams_.end()) return false;
    Pending pending{storage, {}};
    int current = -1;
    (void)cudaGetDevice(&current);
    (void)cudaSetDevice(device_);
    bool recorded = true;
    for (const cudaStream_t stream : found->second) {
      cudaEvent_t event = nullptr;
      if (unused_events_.empty()) {
        recorded &= cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
      } else {
        event = unused_events_.back();
        unused_events_.pop_back();
      }
      recorded &= event != nullptr && cudaEventRecord(event, stream) == cudaSuccess;
      if (event != nullptr) pending.events.push_back(event);
    }
    streams_.erase(found);
    if (!recorded) {
      // The GPU is gone (the process ends), or failing: what still runs there is waited for.
      (void)cudaDeviceSynchronize();
      (void)cudaGetLastError();
      unused_events_.insert(unused_events_.end(), pending.events.begin(), pending.events.end());
    } else {
      pending_.push_back(std::move(pending));
    }
    if (current >= 0) (void)cudaSetDevice(current);
    return recorded;
  }

  std::vector<Storage*> completed(bool wait) override {
    std::vector<Storage*> done;
    for (auto it = pending_.begin(); it != pending_.end();) {
      bool ready = true;
      for (const cudaEvent_t event : it->events) {
        if (wait) {
          C10_CUDA_CHECK(cudaEventSynchronize(event));
        } else {
          const cudaError_t status = cudaEventQuery(event);
          if (status == cudaErrorNotReady) {
            (void)cudaGetLastError();
            ready = false;
            break;
          }
          C10_CUDA_CHECK(status);
        }
      }
      if (!ready) {
        ++it;
        continue;
      }
      unused_events_.insert(unused_events_.end(), it->events.begin(), it->events.end());
      done.push_back(it->storage);
      it = pending_.erase(it);
    }
    return done;
  }

 private:
  struct Pending {
    Storage* storage;
    std::vector<cudaEvent_t> events;
  };

  // For what the other stream was given so far.
  void wait(cudaStream_t stream, cudaStream_t other) {
    if (stream == other) return;
    const cudaEvent_t event = new_event();
    C10_CUDA_CHECK(cudaEventRecord(event, other));
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
    unused_events_.push_back(event);
  }

  cudaEvent_t new_event() {
    if (unused_events_.empty()) {
      cudaEvent_t event = nullptr;
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      return event;
    }
    const cudaEvent_t event = unused_events_.back();
    unused_events_.pop_back();
    return event;
  }

  Bytes bytes_;
  c10::DeviceIndex device_;
  char* base_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::unordered_map<Storage*, std::vector<cudaStream_t>> streams_;  // besides the default one
  std::vector<Pending> pending_;
  std::vector<cudaEvent_t> unused_events_;
};

// What the plain pluggable allocator refuses, done with the arena's own numbers.
class CudaAllocator final : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
 public:
  explicit CudaAllocator(std::function<EngineConfig(int)> configure)
      : CUDAPluggableAllocator([](size_t, int, cudaStream_t) -> void* { return nullptr; },
                               [](void*, size_t, int, cudaStream_t) {}),
        configure_(std::move(configure)) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DeviceIndex device = -1;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    if (bytes == 0) return {nullptr, c10::Device(c10::kCUDA, device)};
    return engine(device).storages().allocate(static_cast<Bytes>(bytes));
  }

  void* raw_alloc(size_t bytes) override {
    if (bytes == 0) return nullptr;
    c10::DataPtr data = allocate(bytes);
    void* address = data.get();
    const std::lock_guard<std::mutex> guard(raw_mutex_);
    raw_.emplace(address, std::move(data));
    return address;
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    void* address = raw_alloc(bytes);
    const std::lock_guard<std::mutex> guard(raw_mutex_);
    const auto found = raw_.find(address);
    if (found != raw_.end()) record(found->second, stream);
    return address;
  }
  void raw_delete(void* address) override {
    c10::DataPtr data;
    const std::lock_guard<std::mutex> guard(raw_mutex_);
    const auto found = raw_.find(address);
    if (found == raw_.end()) return;
    data = std::move(found->second);
    raw_.erase(found);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_raw; }

  void emptyCache(c10::cuda::MempoolId_t) override {}  // nothing is cached
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    *largest = static_cast<size_t>(stats(device).largest_free);
  }
  void* getBaseAllocation(void* address, size_t* size) override {
    for (const auto& engine : cuda_engines()) {
      char* base = engine->memory().base();
      const Bytes budget = engine->config().core.budget;
      if (address < base || address >= base + budget) continue;
      if (size != nullptr) *size = static_cast<size_t>(budget);
      return base;
    }
    return address;
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    record(data, stream.stream());
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Stats stats = this->stats(device);
    c10::CachingDeviceAllocator::DeviceStats result;
    if (stats.budget == 0) return result;
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    auto set = [&](c10::CachingAllocator::StatArray& array, int64_t current, int64_t peak) {
      array[all].current = current;
      array[all].peak = peak;
    };
    set(result.allocated_bytes, stats.held, stats.peak);
    set(result.active_bytes, stats.held, stats.peak);
    set(result.requested_bytes, stats.held, stats.peak);
    set(result.reserved_bytes, stats.budget, stats.budget);
    set(result.segment, 1, 1);
    set(result.allocation, stats.num_values, stats.num_values);
    set(result.active, stats.num_values, stats.num_values);
    result.num_device_alloc = 1;
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    Engine* target = active_engine({c10::kCUDA, device});
    if (target == nullptr) return;
    const EngineLock guard(*target);
    target->core().reset_peak();
  }

  // Torch 2.11 asks with one argument, later ones with two; one of these overrides.
  caching::SnapshotInfo snapshot(c10::cuda::MempoolId_t) { return make_snapshot(); }
  caching::SnapshotInfo snapshot(c10::cuda::MempoolId_t, bool) { return make_snapshot(); }

  std::string name() override { return "coop"; }

 private:
  static void delete_raw(void* address);

  // Of a device that nobody has used: nothing, and asking does not make it an arena.
  static Stats stats(c10::DeviceIndex device) {
    Engine* target = active_engine({c10::kCUDA, device});
    return target == nullptr ? Stats() : target->stats();
  }

  Engine& engine(c10::DeviceIndex device) {
    if (Engine* existing = active_engine({c10::kCUDA, device})) return *existing;
    const EngineConfig config = configure_(device);  // not under the lock: it waits for Python's
    const std::lock_guard<std::mutex> guard(engines_mutex_);
    if (engines_.size() <= static_cast<size_t>(device)) engines_.resize(device + 1);
    if (engines_[device] == nullptr) {
      engines_[device] = std::make_shared<Engine>(
          config, std::make_unique<CudaMemory>(config.core.budget, device));
      set_active_engine({c10::kCUDA, device}, engines_[device]);
    }
    return *engines_[device];
  }

  void record(const c10::DataPtr& data, cudaStream_t stream) {
    Engine* owner = data.device().is_cuda() ? active_engine(data.device()) : nullptr;
    if (owner == nullptr) return;
    // Another thread may be giving it other memory, so what it has is read under the lock.
    const EngineLock guard(*owner);
    if (data.get_deleter() != &Storages::delete_storage) return;
    auto* storage = static_cast<Storage*>(data.get_context());
    if (storage->core != &owner->core()) return;
    static_cast<CudaMemory&>(owner->memory()).used_by(storage, stream);
    // The other stream may read it at any time until then.
    owner->keep(storage, "used by another stream (record_stream)");
  }

  caching::SnapshotInfo make_snapshot() {
    caching::SnapshotInfo info;
    for (const auto& engine : cuda_engines()) {  // by device
      Engine& target = *engine;
      const EngineLock guard(target);
      decltype(info.segments)::value_type segment;
      const auto base = reinterpret_cast<size_t>(target.memory().base());
      const Stats stats = target.core().stats();
      segment.device = target.memory().device().index();
      info.device_traces.resize(static_cast<size_t>(segment.device) + 1);
      segment.address = base;
      segment.total_size = static_cast<size_t>(stats.budget);
      segment.requested_size = segment.allocated_size = segment.active_size =
          static_cast<size_t>(stats.held);
      segment.is_large = true;
      target.core().space().for_each_block([&](const Block& block) {
        typename decltype(segment.blocks)::value_type entry;
        entry.size = entry.requested_size = static_cast<size_t>(block.bytes);
        entry.allocated = entry.active = !block.is_free();
        segment.blocks.push_back(std::move(entry));
      });
      info.segments.push_back(std::move(segment));
    }
    return info;
  }

  std::function<EngineConfig(int)> configure_;
  std::mutex engines_mutex_;
  std::vector<std::shared_ptr<Engine>> engines_;  // keeps them for ever; cuda_engines() lists them
  std::mutex raw_mutex_;
  std::unordered_map<void*, c10::DataPtr> raw_;
};

std::shared_ptr<CudaAllocator>& installed() {
  // Never destroyed: tensors may outlive everything.
  static auto* allocator = new std::shared_ptr<CudaAllocator>();
  return *allocator;
}

void CudaAllocator::delete_raw(void* address) { installed()->raw_delete(address); }

}  // namespace

void install_cuda_allocator(std::function<EngineConfig(int)> configure) {
  auto allocator = std::make_shared<CudaAllocator>(std::move(configure));
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
  installed() = std::move(allocator);
}

bool is_cuda_allocator_installed() { return installed() != nullptr; }

std::pair<Bytes, Bytes> cuda_memory(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<Bytes>(free_bytes), static_cast<Bytes>(total_bytes)};
}

}  // namespace coop
