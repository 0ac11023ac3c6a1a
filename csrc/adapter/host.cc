#include "adapter/host.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/function.h>

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

}  // namespace coop
