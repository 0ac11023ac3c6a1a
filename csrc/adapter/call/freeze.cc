#include "adapter/call/freeze.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

#include "adapter/engine.h"

namespace coop {

namespace {

// What a replay gives the operator for this tensor: a value that it reads, one that it makes of it,
// or memory with anything in it.
void bind_to_value(Engine& engine, Call& call, const TensorArgument& tensor, FrozenTensor& target) {
  Storage* storage = tensor.storage;
  Value* value = tensor.value;
  if (storage == nullptr) {
    storage = engine.externals().add(tensor.impl);
    value = storage->value;
  }
  const std::vector<Write>& writes = call.operation.writes;
  for (size_t w = 0; w < writes.size(); ++w) {
    if (writes[w].storage != storage) continue;
    value = writes[w].old;
    const bool root = writes[w].kind == Write::Kind::kRoot;
    if (!root) target.write = static_cast<int32_t>(w);
    target.copy = root;
    // Covered in full and never read: any memory will do. Rule 7's statistics likewise.
    if (root ? value == nullptr : writes[w].overwrites) {
      value = nullptr;
      target.scratch_bytes = storage->bytes;
    }
  }
  if (value != nullptr) {
    target.input = static_cast<int32_t>(call.inputs.size());
    call.inputs.push_back(value);
  }
}

void freeze_tensors(Engine& engine, Call& call, FrozenCall* frozen) {
  const Operands& operands = call.operands;
  Dimensions* dimensions = &frozen->dimensions;
  frozen->tensors.reserve(operands.tensors.size());
  for (const TensorArgument& tensor : operands.tensors) {
    FrozenTensor& target =
        tensor.before >= 0 ? frozen->tensors.emplace_back(operands.before[tensor.before],
                                                          operands.before_dimensions, dimensions)
        : tensor.tensor != nullptr ? frozen->tensors.emplace_back(*tensor.tensor, dimensions)
                                   : frozen->tensors.emplace_back();
    target.argument = tensor.argument;
    target.list_index = tensor.list_index;
    target.storage_bytes = static_cast<Bytes>(tensor.storage_bytes);
    if (target.defined && tensor.storage_bytes > 0) bind_to_value(engine, call, tensor, target);
  }
}

// Behind those of the tensors: the shapes of what it made (see evicted_message).
void freeze_shapes(const Call& call, FrozenCall* frozen) {
  for (const c10::TensorImpl* result : call.results) {
    frozen->dimensions.push_back(result != nullptr ? result->dim() : -1);
    if (result == nullptr) continue;
    const c10::IntArrayRef sizes = result->sizes();
    frozen->dimensions.append(sizes.begin(), sizes.end());
  }
}

}  // namespace

FrozenCall* freeze(Engine& engine, Call& call, const c10::OperatorHandle& op,
                   c10::DispatchKeySet keys, const Invocation& invocation, RngState rng) {
  FrozenCall* frozen = engine.recipes().make(op);
  frozen->info = call.info;
  frozen->origin = {call.info->id, call.source};
  frozen->keys = keys;
  frozen->dispatch = c10::impl::tls_local_dispatch_key_set();
  // No mode of Python's sees a replay. (A compiled graph runs under those that are active.)
  frozen->dispatch.included_ = frozen->dispatch.included_ - c10::python_ks -
                               c10::DispatchKeySet(c10::DispatchKey::PreDispatch);
  frozen->flags = engine.flags().current(call.info->products, engine.memory().device().is_cuda());
  frozen->rng = std::move(rng);
  frozen->side = call.side;
  frozen->in_backward =
      call.backward != nullptr ? call.backward->is_running : look_at_backward().is_running;
  frozen->num_fresh = static_cast<uint32_t>(call.fresh.size());
  freeze_tensors(engine, call, frozen);
  invocation.freeze(&frozen->arguments);
  freeze_shapes(call, frozen);
  return frozen;
}

}  // namespace coop
