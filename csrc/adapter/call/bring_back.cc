// The second step of an operator: its operands are brought back and locked, and the core is told
// what it is about to write.
#include <algorithm>
#include <mutex>

#include "adapter/call/handler.h"
#include "adapter/call/refusals.h"
#include "adapter/call/running.h"
#include "adapter/engine.h"
#include "adapter/errors.h"

namespace coop {

void Handler::bring_back() {
  const OpInfo& info = *call_.info;
  Core& core = engine_.core();
  Operands& operands = call_.operands;
  call_.operation.writes.clear();
  state_ = State::kBegun;
  std::unique_lock<MaterializerMutex> materializer(engine_.locks().materializer, std::defer_lock);
  // Preparing a write may replay.
  if (info.has_writes) materializer.lock();
  EngineLock lock(engine_);
  // Traces and reports tell of recipes, and whoever evicts everything means it.
  call_.operation.quiet = core.is_quiet() && engine_.recorder() == nullptr &&
                          !core.events().enabled && !engine_.config().paranoid;
  call_.operation.undefined = info.undefined;
  call_.operation.lets_go = lets_go_;
  if (info.has_writes) plan_writes();
  bool evicted = false;
  for (const Storage* storage : operands.storages) evicted |= !storage->value->is_ready();
  evicted |= core.acts_before();
  if (evicted && !materializer.owns_lock()) {
    lock.unlock();
    materializer.lock();
    lock.lock();
  }
  running().origin = {info.id, call_.source};
  core.set_origin(running().origin);
  begin_serial_ = core.graph().last_serial();
  try {
    lock_operands();
  } catch (const OutOfBudget& error) {
    core.abort(call_.operation);
    state_ = State::kNone;
    throw BudgetExceeded(error);
  }
  for (TensorArgument& tensor : operands.tensors) {
    if (tensor.storage != nullptr) tensor.value = tensor.storage->value;
  }
  if (Recorder* recorder = engine_.recorder()) {
    recorder->begin(call_);
    traced_ = true;
  }
  const bool clean_up = engine_.recipes().is_full();
  if (!operands.fake) timing_ = engine_.costs().begin();
  lock.unlock();
  if (clean_up) engine_.recipes().clean_up();
}

// Which storages will be written, and what becomes of their content.
void Handler::plan_writes() {
  const OpInfo& info = *call_.info;
  const std::vector<TensorArgument>& tensors = call_.operands.tensors;
  const bool make_root = engine_.is_optimizing() || info.writes_statistics ||
                         !call_.operands.understood || info.unknown || info.collective != nullptr;
  // A part of what was received would be made again from the whole, which would stay for it.
  const bool reads_received = std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return !tensor.written && tensor.storage != nullptr && tensor.storage->value->received;
  });
  bool gets_recipe = info.has_fresh_outputs;
  for (const TensorArgument& tensor : tensors) {
    if (!tensor.written || tensor.parameter || tensor.storage == nullptr) continue;
    const Value* value = tensor.storage->value;
    gets_recipe |= !make_root && tensor.storage->keeps == 0 &&
                   (value->is_version() || (value->undefined && !reads_received));
  }
  gets_recipe &= call_.is_replayable() && !call_.operation.quiet;
  const int64_t mark = engine_.core().graph().new_mark();
  for (const TensorArgument& tensor : tensors) {
    if (!tensor.written || !tensor.has_bytes()) continue;
    Storage* storage = tensor.storage;
    if (storage == nullptr) {
      // Memory of others matters if a recipe reads it, or will.
      Externals& externals = engine_.externals();
      storage = gets_recipe ? externals.add(tensor.impl) : externals.find(tensor.impl);
      if (storage == nullptr) continue;
    }
    if (storage->value->mark == mark) continue;  // under another name
    storage->value->mark = mark;
    Write& write = call_.operation.writes.emplace_back();
    write.storage = storage;
    // What is kept, or a collective uses, could not be brought back to its address, were it half
    // written.
    write.make_root = make_root || tensor.parameter || storage->keeps > 0 ||
                      (storage->value->undefined && reads_received) ||
                      engine_.in_flight().uses(storage->value);
    // What is overwritten may be read under another name.
    bool reads = !info.overwrites;
    write.overwrites = info.overwrites;
    const Bytes bytes = engine_.storages().content_bytes(*storage);
    for (size_t i = 0; info.overwrites && i < tensors.size(); ++i) {
      if (tensors[i].impl != tensor.impl) continue;
      reads |= !tensors[i].written;
      write.overwrites &= call_.operands.covers(tensors[i], bytes);
    }
    write.keep_old = gets_recipe && !info.writes_statistics && reads;
  }
}

// Throws OutOfBudget.
void Handler::lock_operands() {
  const OpInfo& info = *call_.info;
  Core& core = engine_.core();
  const std::vector<Storage*>& storages = call_.operands.storages;
  std::vector<Storage*> loose;
  if (info.unknown) loose = find_loose();
  core.begin(call_.operation, storages.data(), storages.size());
  fix(loose);
  if (info.collective != nullptr && !storages.empty()) {
    in_flight_ = std::make_unique<Operation>();
    core.begin(*in_flight_, storages.data(), storages.size());
  }
  if (call_.refusal == kOtherStream) {
    // The stream may read them at any time until it is done, which is not known before they die.
    for (Storage* storage : storages) {
      engine_.memory().used(storage);
      engine_.keep(storage, "used by another stream");
    }
  }
  if (info.shares_memory) {
    for (Storage* storage : storages) {
      if (Recorder* recorder = engine_.recorder()) recorder->expose(storage, nullptr);
      core.expose(storage);
      core.keep(storage, info.refusal, /*for_good=*/true);
      engine_.storages().make_simple(*storage);
    }
  }
}

void Handler::fix(const std::vector<Storage*>& storages) {
  for (Storage* storage : storages) {
    engine_.keep(storage, call_.info->refusal);
    fixed_bytes_ += engine_.storages().content_bytes(*storage);
  }
}

// Rule 9: what could still be evicted or moved of an operator's arguments. It writes them for as
// long as it likes (a collective goes on after it has returned), so they stay where they are; who
// goes on using their memory keeps them alive, as without a budget.
std::vector<Storage*> Handler::find_loose() const {
  std::vector<Storage*> result;
  for (Storage* storage : call_.operands.storages) {
    const Value* value = storage->value;
    if (value->arena != &engine_.core().space().arena() || value->stays()) continue;
    if (storage->keep_reason == call_.info->refusal) continue;
    if (std::find(result.begin(), result.end(), storage) == result.end()) result.push_back(storage);
  }
  return result;
}

}  // namespace coop
