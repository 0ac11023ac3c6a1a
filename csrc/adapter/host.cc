#include "adapter/host.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstring>

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

// Calls f(address in main memory, address in the arena, bytes) for the pieces of a copy; f returns
// whether to go on. False: it did not, or main memory has no more.
template <typename F>
bool for_each_piece(const Engine& engine, const Value& value, const HostExtents& extents, F&& f) {
  auto* content = static_cast<std::byte*>(engine.storages().address(value));
  Bytes left = value.bytes - engine.storages().header_bytes();
  for (const HostExtent& extent : extents) {
    for (Bytes done = 0; done < extent.bytes && left > 0;) {
      Bytes bytes = std::min(extent.bytes - done, left);
      std::byte* piece = engine.config().host_memory->find(extent.offset + done, &bytes);
      if (piece == nullptr || !f(piece, content, bytes)) return false;
      content += bytes;
      left -= bytes;
      done += bytes;
    }
  }
  return true;
}

}  // namespace

bool TorchHost::copy_out(const Value& value, const HostExtents& to) {
  return for_each_piece(engine_, value, to, [&](std::byte* piece, std::byte* content, Bytes bytes) {
    engine_.memory().copy(piece, content, bytes);
    return true;
  });
}

Storage* TorchHost::copy_in(const Value& value, const HostExtents& from) {
  attend(engine_);
  const RunScope scope(Side::kLeft, /*repeatable=*/true, /*replaying=*/true);
  Storage* made = engine_.core().allocate(value.bytes, Side::kLeft);
  for_each_piece(engine_, *made->value, from,
                 [&](const std::byte* piece, std::byte* content, Bytes bytes) {
                   engine_.memory().copy(content, piece, bytes);
                   return true;
                 });
  return made;
}

// A block may end with bytes that are nobody's. How many they are only a storage knows; of what has
// none it is less than an alignment.
bool TorchHost::is_copy(const Value& value, const HostExtents& extents) {
  if (!engine_.memory().device().is_cpu()) return true;
  const Storages& storages = engine_.storages();
  Bytes left = value.storage != nullptr
                   ? storages.content_bytes(*value.storage)
                   : value.bytes - storages.header_bytes() - engine_.config().core.alignment + 1;
  return for_each_piece(engine_, value, extents,
                        [&](const std::byte* piece, const std::byte* content, Bytes bytes) {
                          const Bytes compared = std::clamp<Bytes>(left, 0, bytes);
                          left -= bytes;
                          return std::memcmp(piece, content, compared) == 0;
                        });
}

}  // namespace coop
