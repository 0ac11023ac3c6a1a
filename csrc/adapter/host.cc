#include "adapter/host.h"

#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstddef>

#include "adapter/call/attend.h"
#include "adapter/call/running.h"
#include "adapter/call/saved_content.h"
#include "adapter/engine.h"

namespace coop {

Engine& TorchHost::engine_of(const Storage& storage) { return engine_of(*storage.core->host()); }

void TorchHost::release(Storage& storage) { engine_.storages().release(storage); }

void TorchHost::restore(Storage& storage) { engine_.storages().restore(storage); }

void TorchHost::copy(Value& to, const Value& from, Bytes bytes) {
  engine_.storages().copy(to, from, bytes);
}

void TorchHost::move(Value& value, Bytes from) { engine_.storages().move(value, from); }

bool TorchHost::may_move() const { return engine_.memory().on_main_stream(); }

bool TorchHost::may_move_gradients() const {
  return torch::autograd::get_current_node() != nullptr || engine_.is_optimizing();
}

// Where cuDNN's benchmark mode chooses by trying, what does not fit is passed over.
bool TorchHost::may_retry() const {
  return running().repeatable && !at::globalContext().benchmarkCuDNN();
}

bool TorchHost::is_replaying() const { return running().replaying; }

Ends& TorchHost::ends() { return running().ends; }

SavedBytes* TorchHost::new_saved_bytes(const Value& value) { return new SavedContent(value); }

namespace {

std::byte* content_of(const Engine& engine, const Value& value) {
  return static_cast<std::byte*>(engine.storages().address(value));
}

}  // namespace

bool TorchHost::copy_out(const Value& value, const HostExtents& to, double last_use) {
  const Bytes bytes = value.bytes - engine_.storages().header_bytes();
  const bool copied =
      engine_.config().host_memory->copy_out(to, content_of(engine_, value), bytes, last_use);
  engine_.core().faults.strike_copy();
  return copied;
}

void TorchHost::placed(const Value& value) {
  HostMemory* host = engine_.config().host_memory.get();
  // A copy in waits for what it has to, and no operator waits for that.
  if (host == nullptr || is_copying_in_) return;
  host->before_reuse(content_of(engine_, value), value.bytes);
}

Storage* TorchHost::copy_in(const Value& value, const HostExtents& from, bool later) {
  attend(engine_);
  const RunScope scope(running(), Side::kLeft, /*repeatable=*/true, /*replaying=*/true);
  Storage* made = nullptr;
  {
    is_copying_in_ = true;
    const auto end = c10::make_scope_exit([&] { is_copying_in_ = false; });
    made = engine_.core().allocate(value.bytes, Side::kLeft);
  }
  const Bytes bytes = value.bytes - engine_.storages().header_bytes();
  try {
    engine_.config().host_memory->copy_in(content_of(engine_, *made->value), from, bytes, later);
    engine_.core().faults.strike_copy();
  } catch (...) {
    engine_.core().storage_died(made);
    throw;
  }
  return made;
}

void TorchHost::arrived(const Value& value) {
  engine_.config().host_memory->before_use(content_of(engine_, value), value.bytes);
}

// A block may end with bytes that are nobody's. How many they are only a storage knows; of what has
// none it is less than an alignment.
bool TorchHost::is_copy(const Value& value, const HostExtents& extents) {
  const Storages& storages = engine_.storages();
  const Bytes bytes = value.storage != nullptr ? storages.content_bytes(*value.storage)
                                               : value.bytes - storages.header_bytes() -
                                                     engine_.config().core.alignment + 1;
  return engine_.config().host_memory->is_copy(extents, content_of(engine_, value),
                                               std::max<Bytes>(bytes, 0));
}

}  // namespace coop
