#include "adapter/storage/cpu_arena.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>

#include "adapter/engine.h"
#include "adapter/registry.h"

namespace coop {

namespace {

void delete_raw(void* address);

// Until these bytes were allocated outside of any budget; zero or less: nobody waits.
std::atomic<Bytes> g_awaited_bytes{0};
void (*g_awaiting)() = nullptr;

void count_awaited(Bytes bytes) {
  if (g_awaited_bytes.load(std::memory_order_relaxed) <= 0) return;
  const Bytes before = g_awaited_bytes.fetch_sub(bytes);
  if (before > 0 && before <= bytes) g_awaiting();
}

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* previous) : previous_(previous) {}

  c10::DataPtr allocate(size_t bytes) override {
    Engine* engine = active_engine(c10::kCPU);
    if (engine == nullptr || bytes == 0 || !is_thread_enabled()) {
      count_awaited(static_cast<Bytes>(bytes));
      return previous_->allocate(bytes);
    }
    return engine->storages().allocate(static_cast<Bytes>(bytes));
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_raw; }

  c10::Allocator* previous() const { return previous_; }

 private:
  c10::Allocator* previous_;
};

CpuAllocator*& installed() {
  static CpuAllocator* allocator = nullptr;
  return allocator;
}

void delete_raw(void* address) {
  if (!Storages::delete_raw(address)) installed()->previous()->raw_deallocate(address);
}

// Where they are (`ulimit -v`), even what is never touched counts.
bool addresses_are_limited() {
  const auto is_limited = [](auto resource) {
    rlimit limit{};
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  return is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA);
}

class CpuMemory final : public Memory {
 public:
  static constexpr Bytes kAlignment = 64;

  // Addresses for twice the budget, as far as they cost nothing: the second half is used only on
  // leaving, when every tensor is given back at once. Without it they leave one after the other.
  // Pages are taken as they are touched.
  explicit CpuMemory(Bytes bytes)
      : bytes_((addresses_are_limited() ? 1 : 2) * (bytes + kAlignment)) {
    void* region = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(region != MAP_FAILED, "coop: could not reserve " + std::to_string(bytes) +
                                          " bytes: " + std::strerror(errno));
    base_ = static_cast<char*>(region);
  }
  ~CpuMemory() override { munmap(base_, bytes_); }
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  c10::Device device() const override { return c10::kCPU; }
  char* base() const override { return base_; }
  Bytes reserved_bytes() const override { return bytes_; }
  Bytes header_bytes() const override { return kAlignment; }  // keeps torch's alignment
  void copy(void* to, const void* from, Bytes bytes) override { std::memcpy(to, from, bytes); }
  void discard(Bytes offset, Bytes bytes) override {
    // Whole pages only; the neighbours are in use.
    constexpr Bytes kPage = 4096;
    const Bytes begin = (offset + kPage - 1) / kPage * kPage;
    const Bytes end = (offset + bytes) / kPage * kPage;
    if (end > begin) madvise(base_ + begin, end - begin, MADV_DONTNEED);
  }
  c10::DataPtr allocate_outside(Bytes bytes) override {
    return installed()->previous()->allocate(bytes);
  }
  std::unique_ptr<Stopwatch> make_stopwatch() override {
    return std::make_unique<ClockStopwatch>();
  }

 private:
  Bytes bytes_;
  char* base_ = nullptr;
};

}  // namespace

std::unique_ptr<Memory> make_cpu_memory(Bytes bytes) { return std::make_unique<CpuMemory>(bytes); }

void install_cpu_allocator() {
  if (installed() != nullptr) return;
  installed() = new CpuAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(installed(), /*priority=*/100);
}

void await_first_bytes(Bytes bytes, void (*call)()) {
  install_cpu_allocator();
  g_awaiting = call;
  g_awaited_bytes = bytes;
}

}  // namespace coop
