#include "cuda/allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapter/registry.h"
#include "cuda/memory.h"

namespace coop {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// What the plain pluggable allocator refuses, done with the arena's own numbers. A device has an
// engine from its first allocation on, for ever. `raw_` has what is held by an address alone.
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
    EngineConfig config = configure_(device);  // not under the lock: it waits for Python's
    const std::lock_guard<std::mutex> guard(engines_mutex_);
    if (engines_.size() <= static_cast<size_t>(device)) engines_.resize(device + 1);
    if (engines_[device] == nullptr) {
      auto memory = std::make_unique<CudaMemory>(config.core.budget, device);
      if (config.core.host_bytes > 0) {
        config.host_memory = memory->make_pinned(config.core.host_bytes);
      }
      engines_[device] = std::make_shared<Engine>(config, std::move(memory));
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
    static_cast<CudaMemory&>(owner->memory()).streams().use(storage, stream);
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

}  // namespace coop
