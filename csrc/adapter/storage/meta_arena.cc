#include "adapter/storage/meta_arena.h"

#include <c10/core/Allocator.h>

#include <utility>

#include "adapter/engine.h"
#include "adapter/registry.h"

namespace coop {

namespace {

// Whether what this thread makes is the program's.
thread_local bool counts = true;

class MetaAllocator final : public c10::Allocator {
 public:
  explicit MetaAllocator(c10::Allocator* previous) : previous_(previous) {}

  c10::DataPtr allocate(size_t bytes) override {
    Engine* engine = active_engine(c10::kMeta);
    if (engine == nullptr || bytes == 0 || !counts) return previous_->allocate(bytes);
    return engine->storages().allocate(static_cast<Bytes>(bytes));
  }
  void copy_data(void*, const void*, std::size_t) const override {}
  c10::DeleterFnPtr raw_deleter() const override { return previous_->raw_deleter(); }

 private:
  c10::Allocator* previous_;
};

class MetaMemory final : public Memory {
 public:
  explicit MetaMemory(Bytes bytes) : bytes_(bytes) {}

  c10::Device device() const override { return c10::kMeta; }
  // No process has memory there; nothing is ever read from it.
  char* base() const override { return reinterpret_cast<char*>(uintptr_t{1} << 62); }
  Bytes reserved_bytes() const override { return bytes_; }
  void copy(void*, const void*, Bytes) override {}
  void discard(Bytes, Bytes) override {}
  c10::DataPtr allocate_outside(Bytes) override { return {}; }

 private:
  Bytes bytes_;
};

}  // namespace

std::unique_ptr<Memory> make_meta_memory(Bytes bytes) {
  return std::make_unique<MetaMemory>(bytes);
}

void install_meta_allocator() {
  static auto* allocator = new MetaAllocator(c10::GetAllocator(c10::kMeta));
  c10::SetAllocator(c10::kMeta, allocator, /*priority=*/100);
}

bool set_meta_counts(bool on) { return std::exchange(counts, on); }

void resize_meta(c10::StorageImpl& storage, Bytes bytes) {
  Engine* engine = active_engine(c10::kMeta);
  const bool was_empty = storage.nbytes() == 0;
  if (engine != nullptr && bytes == 0 && engine->give_back(&storage)) return;
  storage.set_data_ptr(c10::GetAllocator(c10::kMeta)->allocate(static_cast<size_t>(bytes)));
  storage.set_nbytes(static_cast<size_t>(bytes));
  if (engine != nullptr && was_empty) engine->undefine(&storage);
}

}  // namespace coop
