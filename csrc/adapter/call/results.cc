// The last two steps of an operator: what it made and wrote, and telling the core.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "adapter/call/cost.h"
#include "adapter/call/freeze.h"
#include "adapter/call/handler.h"
#include "adapter/call/refusals.h"
#include "adapter/call/running.h"
#include "adapter/dispatch/tensor_kinds.h"
#include "adapter/engine.h"

namespace coop {

// --- 4. make a recipe

void Handler::make_recipe() {
  collect_fresh();
  find_cost();
  engine_.core().resolve_writes(call_.operation);
  recordable_ = can_have_outputs();
  quiet_ = call_.operation.quiet;
  if (recordable_ && !quiet_ && reads_what_is_gone()) {
    call_.refusal = "it reads what it overwrites";
  }
  replayable_ = wants_recipe_ && call_.is_replayable();
  if (Recorder* recorder = engine_.recorder()) {
    recorder->commit(call_, cost_, flops_, replayable_);
  }
  traced_ = false;
  if (recordable_ && replayable_ && !quiet_ && !call_.info->undefined) {
    recipe_ = freeze(engine_, call_, op_, keys_, invocation_, std::move(rng_));
  }
}

// The storages the operator made, in the order of its results.
void Handler::collect_fresh() {
  const Storages& storages = engine_.storages();
  Operands& operands = call_.operands;
  invocation_.for_each_result([&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const c10::TensorImpl& result = *tensor.unsafeGetTensorImpl();
    c10::StorageImpl* impl = result.unsafe_storage().unsafeGetStorageImpl();
    Storage* storage = storages.find(impl);
    if (storage == nullptr || storage->handle != nullptr) return;
    storages.adopt(*storage, impl);
    if (storage->value->serial <= begin_serial_) return;  // somebody else's
    call_.fresh.push_back(storage);
    // Python must not be asked for sizes: this is under the lock.
    const auto itemsize = static_cast<double>(result.itemsize());
    const bool understood = is_understood(result, operands.fake);
    call_.results.push_back(understood ? &result : nullptr);
    operands.bytes_moved += understood ? static_cast<double>(result.numel()) * itemsize
                                       : static_cast<double>(storages.content_bytes(*storage));
    operands.half |= result.itemsize() == 2;
  });
}

void Handler::find_cost() {
  const EngineConfig& config = engine_.config();
  const Operands& operands = call_.operands;
  flops_ = count_flops(call_, invocation_);
  const double bytes = operands.bytes_moved + call_.info->region_bytes;
  const double flops = std::max(flops_, 0.0);
  Cost estimate = roofline(config.profile, flops, operands.half, bytes);
  if (call_.info->region_flops < 0) estimate = std::max(estimate, measured_);
  const int32_t timing = std::exchange(timing_, MeasuredCosts::kNotTimed);
  cost_ = engine_.costs().end(timing, *call_.info, flops, bytes, estimate);
}

// It did not run to its end. Under the lock.
void Handler::drop_timing() {
  engine_.costs().drop(std::exchange(timing_, MeasuredCosts::kNotTimed));
}

// Whether a recipe would make anything that can be evicted: small values are roots from the start.
bool Handler::can_have_outputs() const {
  bool result = false;
  const Space& space = engine_.core().space();
  for (const Storage* storage : call_.fresh) result |= space.has(storage->value);
  for (const Write& write : call_.operation.writes) result |= write.makes_version();
  return result;
}

// A root was written without keeping its old bytes, since nothing seemed to need a recipe, and was
// read under another name; a result that got other memory needs one after all.
bool Handler::reads_what_is_gone() const {
  for (const Write& write : call_.operation.writes) {
    if (write.kind != Write::Kind::kRoot || write.old != nullptr) continue;
    for (const TensorArgument& tensor : call_.operands.tensors) {
      if (tensor.written || !tensor.has_bytes()) continue;
      const Storage* read =
          tensor.storage != nullptr ? tensor.storage : engine_.externals().add(tensor.impl);
      if (write.storage == read) return true;
    }
  }
  return false;
}

// --- 5. commit

void Handler::commit() {
  Core& core = engine_.core();
  call_.operation.quiet = quiet_ && replayable_;
  core.set_origin({call_.info->id, call_.source});
  if (call_.info->collective != nullptr) {
    for (const Write& write : call_.operation.writes) write.storage->value->received = true;
  }
  core.commit(call_.operation, recipe_, call_.inputs.data(), call_.inputs.size(),
              call_.fresh.data(), call_.fresh.size(), cost_);
  state_ = State::kNone;
  if (HostMemory* host = engine_.config().host_memory.get()) {
    host->reached(core.journal().clock);
    if (host->take_refusal()) {
      warning_ = "coop: the system has no more than " +
                 std::to_string(core.stats().host_bytes >> 20) +
                 " MiB for copies (host=): what does not fit there stays, or is recomputed";
    }
  }
  keep_results();
  if (running().hold != nullptr) hold_results(*running().hold);
  if (engine_.config().paranoid) core.evict_all();
}

// Rule 9: what cannot be recomputed stays.
void Handler::keep_results() {
  const OpInfo& info = *call_.info;
  const bool stays = recordable_ && recipe_ == nullptr && call_.refusal != kInput &&
                     !call_.operation.quiet && !(replayable_ && info.undefined);
  // An input may leave by a copy, though there is no recipe for it.
  if (call_.refusal == kInput || (stays && call_.refusal == kOtherDevice)) {
    for (Storage* storage : call_.fresh) engine_.core().let_leave_by_copy(storage);
  }
  if (!stays && fixed_bytes_ == 0 && info.collective == nullptr) return;
  const char* reason = call_.refusal != nullptr ? call_.refusal : "an argument is not understood";
  // What comes from another device is an input: a root like any other.
  if (stays && reason != kOtherDevice) {
    for (Storage* storage : call_.fresh) engine_.core().keep(storage, reason, /*for_good=*/true);
  }
  KeptOperators& kept = engine_.kept_operators();
  if (!call_.is_replayable()) kept.add(info, reason);
  if (info.warns || (stays && call_.refusal == kForeign)) {
    Bytes bytes = fixed_bytes_;
    for (const Storage* storage : call_.fresh) bytes += engine_.storages().content_bytes(*storage);
    warning_ = kept.warn_once(info, reason, bytes);
  }
}

// For whoever runs above our dispatch key, and looks at what it made.
void Handler::hold_results(Loans& loans) {
  for (Storage* storage : call_.fresh) {
    engine_.core().begin(loans.add(engine_), &storage, 1);
  }
}

}  // namespace coop
