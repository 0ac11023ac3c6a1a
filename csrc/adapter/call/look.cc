// The first step of an operator: who are its operands, and can it be replayed?
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>

#include "adapter/call/handler.h"
#include "adapter/call/refusals.h"
#include "adapter/engine.h"
#include "adapter/errors.h"
#include "adapter/registry.h"
#include "core/prefetch.h"

namespace coop {

namespace {

// Memory that others can write behind torch's back: NumPy arrays and other foreign buffers.
bool is_foreign(const c10::DataPtr& data) {
  static const c10::DeleterFnPtr foreign = c10::InefficientStdFunctionContext::makeDataPtr(
                                               nullptr, [](void*) {}, c10::kCPU)
                                               .get_deleter();
  return data.get_deleter() == foreign;
}

// Whether a NumPy array shares memory that torch allocated, as far as the storage tells: torch
// makes one whose memory it hands to NumPy one that cannot be resized. That is how we know of
// arrays from before the budget. Memory of an earlier budget has our deleters.
bool is_numpys(c10::StorageImpl& impl) {
  if (impl.resizable()) return false;
  static const c10::DeleterFnPtr torchs = c10::GetDefaultCPUAllocator()->raw_deleter();
  const c10::DeleterFnPtr deleter = impl._mutable_data_ptr_no_checks().get_deleter();
  return deleter == torchs || deleter == &Storages::delete_storage ||
         deleter == &Storages::delete_address;
}

}  // namespace

void Handler::look() {
  const OpInfo& info = *call_.info;
  call_.refusal = info.refusal;
  // What an optimizer writes in place becomes a root: there is nothing to freeze.
  const bool optimizing = engine_.is_optimizing();
  wants_recipe_ = info.refusal == nullptr && (info.has_fresh_outputs || !optimizing);
  // Statistics keep their sizes.
  const bool resizes = info.has_writes && !info.writes_statistics;
  // A compiled graph's inputs may be gone when it is frozen.
  const bool keeps_geometry = wants_recipe_ && (resizes || info.region);
  call_.operands.add_all(info, invocation_, keeps_geometry);
  find_storages();
  for (const TensorArgument& tensor : call_.operands.tensors) check(tensor);
  if (info.dropout_argument >= 0 && invocation_.argument(info.dropout_argument).toDouble() != 0) {
    call_.refusal = "cuDNN's dropout state cannot be captured";
  }
  if (info.copies && brings_in_an_input()) call_.refusal = kInput;
  if (!engine_.memory().on_main_stream()) call_.refusal = kOtherStream;
  const bool factory = call_.operands.tensors.empty();
  const bool left = info.expensive || (factory && !optimizing);
  call_.side = left ? Side::kLeft : Side::kRight;
}

// One lock for all of them.
void Handler::find_storages() {
  Operands& operands = call_.operands;
  if (operands.tensors.empty()) return;
  const EngineLock guard(engine_);
  for (TensorArgument& tensor : operands.tensors) {
    if (tensor.impl == nullptr) continue;
    tensor.storage = engine_.storages().look_up(tensor.impl);
    if (tensor.storage == nullptr) {
      tensor.shared = engine_.externals().is_shared(tensor.impl);
      continue;
    }
    // The next step will lock it.
    prefetch_range(tensor.storage->value, sizeof(Value));
    tensor.shared = tensor.storage->exposed;
    operands.storages.push_back(tensor.storage);
  }
}

// Whether the operator can be replayed, as far as this tensor goes. Not under the lock: another
// engine may have to bring it back.
void Handler::check(const TensorArgument& tensor) {
  if (tensor.storage_bytes == 0) return;
  if (tensor.storage != nullptr) {
    // Torch gives a tensor its new sizes first and its memory then, which may fail in between.
    TORCH_CHECK(tensor.end_bytes <= tensor.storage_bytes,
                "coop: a tensor needs " + std::to_string(tensor.end_bytes) +
                    " bytes, but its storage has " + std::to_string(tensor.storage_bytes) +
                    ": torch was resizing it when that failed with an error. Make it anew.");
    if (tensor.shared) call_.refusal = kForeign;
    return;
  }
  const c10::DataPtr& data = tensor.impl->_mutable_data_ptr_no_checks();
  const bool elsewhere = data.device() != engine_.memory().device();
  if (Engine* other = elsewhere ? active_engine(data.device()) : nullptr) {
    call_.refusal = kOtherDevice;
    borrow(tensor, *other);
  } else if (data.get() == nullptr && data.get_context() == nullptr) {
    call_.operands.understood = false;
  } else if (elsewhere) {
    // Small ones are scalars; the rest are copies from another device.
    if (!tensor.scalar) call_.refusal = kOtherDevice;
  } else if (c10::impl::cow::is_cow_data_ptr(data)) {
    call_.refusal = "copy-on-write storages are not tracked";
  } else if (is_foreign(data) || tensor.shared || is_numpys(*tensor.impl)) {
    call_.refusal = kForeign;
  }
}

// What another device's engine has of it stays while the operator runs, which may allocate there.
void Handler::borrow(const TensorArgument& tensor, Engine& owner) {
  const OpInfo& info = *call_.info;
  try {
    // It does not see the operator.
    if (tensor.written) owner.before_unseen_write(tensor.impl);
    if (info.unknown || info.collective != nullptr)
      owner.keep(tensor.impl, info.refusal, /*for_good=*/true);
    owner.lend(tensor.impl, &loans_.add(owner));
  } catch (const OutOfBudget& error) {
    throw_out_of_budget(info.name, error.replaying, error.shortage);
  }
}

// Whether the operator copies its first argument as it is, which is not the arena's. (Autocast's
// copies are of another type.) What is brought in from outside is a root like any other: everything
// is computed from it, so were it evicted, all that is evicted would be one neighbourhood.
bool Handler::brings_in_an_input() const {
  const OpInfo& info = *call_.info;
  const Operands& operands = call_.operands;
  if (call_.refusal != nullptr && call_.refusal != kForeign) return false;
  if (operands.tensors.empty() || !operands.understood) return false;
  const TensorArgument& first = operands.tensors.front();
  if (first.impl == nullptr || first.storage != nullptr || info.has_writes) return false;
  // A clone has a memory format there: at most another layout.
  if (info.arguments.size() == 2) return true;
  const c10::IValue dtype = invocation_.argument(1);
  return dtype.isNone() || c10::scalarTypeToTypeMeta(dtype.toScalarType()) == first.tensor->dtype();
}

}  // namespace coop
