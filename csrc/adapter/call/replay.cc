#include "adapter/call/replay.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "adapter/call/attend.h"
#include "adapter/call/invocation.h"
#include "adapter/call/running.h"
#include "adapter/dispatch/draws.h"
#include "adapter/dispatch/profiling.h"
#include "adapter/engine.h"
#include "adapter/errors.h"

namespace coop {

namespace {

// A replay runs where its operator ran: on the default stream of its GPU. If another one asked for
// it, that waits.
class MainStreamScope {
 public:
  explicit MainStreamScope(c10::Device device)
      : device_(device),
        main_(streams().getDefaultStream(device)),
        asking_(streams().exchangeStream(main_)) {}
  ~MainStreamScope() {
    if (!finished_) streams().exchangeStream(asking_);
  }
  // The stream that asked waits for what ran meanwhile. To be called at the end, if it ran.
  void finish() {
    finished_ = true;
    streams().exchangeStream(asking_);
    if (asking_ == main_) return;
    c10::Event done(c10::kCUDA);
    done.record(main_);
    done.block(asking_);
  }
  MainStreamScope(const MainStreamScope&) = delete;
  MainStreamScope& operator=(const MainStreamScope&) = delete;

 private:
  static const c10::impl::DeviceGuardImplInterface& streams() {
    return *c10::impl::getDeviceGuardImpl(c10::kCUDA);
  }
  const c10::DeviceGuard device_;  // what was made on the current device was made on this one
  const c10::Stream main_;
  const c10::Stream asking_;
  bool finished_ = false;
};

// A storage over an address, owning nothing.
c10::Storage view_of(void* address, Bytes bytes, c10::Device device) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(address, device),
                      c10::GetAllocator(device.type()), /*resizable=*/true);
}

}  // namespace

Replay::Replay(Engine& engine, FrozenCall& recipe, Storage** outputs)
    : engine_(engine),
      recipe_(recipe),
      outputs_(outputs),
      begin_serial_(engine.core().graph().last_serial()),
      addresses_(recipe.tensors.size()) {}

void Replay::run() {
  const c10::Device device = engine_.memory().device();
  std::optional<MainStreamScope> stream;
  if (device.is_cuda()) stream.emplace(device);
  const RunScope scope(running(), recipe_.side, /*repeatable=*/true, /*replaying=*/true);
  const Recorder::PauseScope unrecorded;
  const UnprofiledScope unprofiled;
  try {
    take_memory();
  } catch (...) {
    free_scratch();
    discard_outputs();
    throw;
  }
  const Flags live = engine_.flags().current(recipe_.flags.products, recipe_.flags.cuda);
  // Tensors must not be destroyed under the lock.
  engine_.locks().mutex.unlock();
  std::exception_ptr failure;
  try {
    run_unlocked(live);
  } catch (...) {
    failure = std::current_exception();
  }
  // While the lock is free: torch may trace what streams wait for.
  if (stream) {
    try {
      stream->finish();
    } catch (...) {
      if (failure == nullptr) failure = std::current_exception();
    }
  }
  engine_.locks().mutex.lock();
  engine_.core().set_origin(recipe_.origin);
  free_scratch();
  if (failure == nullptr) return;
  discard_outputs();
  try {
    std::rethrow_exception(failure);
  } catch (const BudgetExceeded& error) {
    OutOfBudget cause(error.shortage);
    cause.replaying = recipe_.info->name;
    throw cause;
  }
}

// Everything that the operator reads is resident and locked.
void Replay::take_memory() {
  for (size_t i = 0; i < recipe_.tensors.size(); ++i) {
    const FrozenTensor& tensor = recipe_.tensors[i];
    Value* value = tensor.input >= 0 ? recipe_.inputs[tensor.input].value : nullptr;
    if (const Storage* storage = memory_for(tensor, value)) value = storage->value;
    if (value == nullptr) continue;
    const Storages& storages = engine_.storages();
    addresses_[i] = storages.address(*value);
    TORCH_CHECK(tensor.storage_bytes + storages.header_bytes() <= value->bytes,
                "coop: a replay of ", recipe_.info->name,
                " reads a storage that was resized without an operator");
  }
}

// Null: the operator only reads the value.
Storage* Replay::memory_for(const FrozenTensor& tensor, Value* value) {
  Core& core = engine_.core();
  if (tensor.write >= 0) {
    Storage*& output = outputs_[recipe_.num_fresh + tensor.write];
    if (output == nullptr) {
      output = value != nullptr ? core.take_for_write(value, recipe_)
                                : core.allocate(tensor.scratch_bytes, recipe_.side);
    }
    return output;
  }
  if (tensor.copy && value != nullptr) {
    Storage*& copy = copies_[value];
    if (copy == nullptr) scratch_.push_back(copy = core.take_for_write(value, recipe_));
    return copy;
  }
  if (value == nullptr && tensor.scratch_bytes > 0) {
    return scratch_.emplace_back(core.allocate(tensor.scratch_bytes, recipe_.side));
  }
  return nullptr;
}

void Replay::run_unlocked(const Flags& live) {
  TORCH_CHECK(!recipe_.info->deregistered,
              "coop: results of " + recipe_.info->name +
                  " are needed again, but its library was unloaded: keep it, or do not call "
                  "coop.allow_replay for it");
  running().origin = recipe_.origin;
  torch::jit::Stack stack = thaw();
  const c10::impl::ForceDispatchKeyGuard dispatch(
      recipe_.dispatch.included_, recipe_.dispatch.excluded_ | c10::DispatchKeySet(kOurKey));
  const FlagsGuard flags(live, recipe_.flags);
  std::optional<DrawLock> draws;
  std::optional<DrawScope> inside;
  std::optional<RngState::Guard> rng;
  at::Generator drawn_from = recipe_.rng.generator();
  if (recipe_.rng.is_set()) {
    if (const int index = recipe_.info->generator_argument; index >= 0) {
      drawn_from = recipe_.rng.copy();
      stack[index] = drawn_from;
    } else if (recipe_.info->draws_inside && drawn_from.device().is_cpu()) {
      drawn_from = recipe_.rng.copy();
      inside.emplace(drawn_from);
    } else {
      draws.emplace(recipe_.rng.generator());
      rng.emplace(recipe_.rng);
    }
  }
  const int64_t failures = running().failed_allocations;
  recipe_.op.redispatchBoxed(recipe_.keys, &stack);
  if (went_another_way(running(), failures)) throw BudgetExceeded(OutOfBudget(last_shortage()));
  TORCH_CHECK(!recipe_.rng.is_set() || recipe_.rng.is_as_before(drawn_from),
              "coop: results of " + recipe_.info->name +
                  " are needed again, but they cannot be made again: a thread outside of the "
                  "budget drew from the same generator at the same time. Give that thread a "
                  "generator of its own (torch.Generator), or start it inside of the budget.");
  take_results(stack);
}

// The arguments as they were, over the memory of now.
torch::jit::Stack Replay::thaw() const {
  torch::jit::Stack stack;
  std::unordered_map<void*, c10::Storage> views;
  const c10::IValue* plain = recipe_.arguments.begin();
  for (const ArgumentKind kind : recipe_.info->arguments) {
    if (kind == ArgumentKind::kTensor) {
      stack.emplace_back();
      continue;
    }
    const c10::IValue& argument = *plain++;
    // The tensors are pushed to a list of this replay's own.
    stack.push_back(kind == ArgumentKind::kTensorList && argument.isList()
                        ? c10::impl::GenericList(argument.toList().elementType())
                        : argument);
  }
  for (size_t i = 0; i < recipe_.tensors.size(); ++i) {
    const FrozenTensor& frozen = recipe_.tensors[i];
    c10::IValue tensor;
    if (frozen.defined) {
      c10::Storage& view = views[addresses_[i]];
      if (!view || addresses_[i] == nullptr) {
        view = view_of(addresses_[i], frozen.storage_bytes, frozen.device);
      }
      tensor = frozen.thaw(view, recipe_.dimensions);
    }
    if (frozen.list_index < 0) {
      // What was None has no entry here: this is an undefined tensor, as autograd passes them.
      if (!frozen.defined) tensor = at::Tensor();
      stack[frozen.argument] = std::move(tensor);
      continue;
    }
    c10::List<c10::IValue> list = stack[frozen.argument].toList();
    if (!frozen.defined && list.elementType()->kind() == c10::TypeKind::TensorType) {
      tensor = at::Tensor();
    }
    list.push_back(std::move(tensor));
  }
  return stack;
}

// Takes the storages out of the tensors that were made.
void Replay::take_results(const torch::jit::Stack& stack) {
  for (size_t i = stack.size() - recipe_.info->num_results; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor, int32_t) { take_result(tensor); });
  }
  TORCH_CHECK(num_found_ == recipe_.num_fresh, "coop: a replay of ", recipe_.info->name,
              " made fewer results than before");
  for (size_t i = 0; i < num_found_; ++i) {
    TORCH_CHECK(
        recipe_.outputs[i] == nullptr || recipe_.outputs[i]->bytes == outputs_[i]->value->bytes,
        "coop: a replay of ", recipe_.info->name, " made a result of another size");
  }
}

void Replay::take_result(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  Storages& storages = engine_.storages();
  Storage* storage = storages.find(impl);
  if (storage == nullptr || storage->value->serial <= begin_serial_) return;
  storages.disown(impl);
  TORCH_CHECK(num_found_ < recipe_.num_fresh, "coop: a replay of ", recipe_.info->name,
              " made more results than before");
  outputs_[num_found_++] = storage;
}

void Replay::free_scratch() {
  for (Storage* storage : scratch_) engine_.core().storage_died(storage);
}

void Replay::discard_outputs() {
  for (size_t i = 0; i < recipe_.outputs.size(); ++i) {
    if (outputs_[i] != nullptr) {
      engine_.core().storage_died(std::exchange(outputs_[i], nullptr));
    }
  }
}

}  // namespace coop
