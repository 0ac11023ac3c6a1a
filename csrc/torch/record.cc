// What is kept of an operator that ran, and running it again.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/function.h>

#include <cmath>
#include <functional>
#include <optional>
#include <unordered_map>

#include "torch/above.h"
#include "torch/engine.h"
#include "torch/profiling.h"
#include "torch/rng.h"
#include "torch/running.h"
#include "torch/tensor_kinds.h"

namespace coop {

// --- 4. record, 5. unlock ------------------------------------------------------------------------

void Engine::record(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    const Invocation& invocation) {
  const OpInfo& info = *call.info;
  bool sweep = false;
  bool trash = false;
  std::string warning;
  {
    const EngineLock guard(*this);
    collect_fresh(call, invocation);
    Cost cost = call.measured;
    double flops = 0;
    if (!config_.measure || recorder_ != nullptr) {
      if (info.flops != FlopFormula::kNone) flops = count_flops(call, invocation);
    }
    if (!config_.measure) cost = roofline(config_.profile, flops, call.half, call.bytes_moved);
    core_.settle_writes(call.operation);
    bool recordable = false;
    for (const Storage* storage : call.fresh) recordable |= core_.can_have_recipe(storage);
    for (const Write& write : call.operation.writes) {
      recordable |= write.makes_version();
    }
    const bool quiet = call.operation.quiet;
    if (recordable && !quiet && reads_what_is_gone(call)) {
      call.refusal = "it reads what it overwrites";
    }
    const bool replayable = call.records && call.refusal == nullptr && call.understood;
    if (recorder_ != nullptr) recorder_->commit(call, cost, flops, replayable);
    call.traced = false;
    FrozenCall* frozen = nullptr;
    if (recordable && replayable && !quiet) {
      frozen = freeze(call, op, keys, invocation);
    }
    call.operation.quiet = quiet && replayable;
    core_.set_origin({info.id, call.source});
    core_.commit(call.operation, frozen, call.inputs.data(), call.inputs.size(), call.fresh.data(),
                 call.fresh.size(), cost);
    call.state = Call::State::kNone;
    const bool stays =
        recordable && frozen == nullptr && call.refusal != kInput && !call.operation.quiet;
    if (stays || call.fixed_bytes > 0) {
      const char* reason = call.refusal != nullptr ? call.refusal : "an argument is not understood";
      // What comes from another device is an input: a root like any other.
      if (stays && reason != kOtherDevice) {
        for (Storage* storage : call.fresh) core_.keep(storage, reason, /*for_good=*/true);
      }
      if (call.refusal != nullptr || !call.understood) pinned_.emplace(info.id, reason);
      if (info.warns || (stays && call.refusal == kForeign)) {
        Bytes bytes = call.fixed_bytes;
        for (const Storage* storage : call.fresh) bytes += content_bytes(*storage);
        warning = pinned_warning(info, reason, bytes);
      }
    }
    if (running().hold != nullptr) {
      for (Storage* storage : call.fresh) {
        // Whoever asked for it may write it by its address: to make it again would lose that.
        if (info.undefined) core_.make_root(storage);
        Loan& loan = running().hold->loans.emplace_back(this, Operation());
        core_.begin(loan.operation, &storage, 1);
      }
    }
    if (config_.paranoid) core_.evict_all();
    sweep = externals_.size() > sweep_at_;
    trash = is_trash_full();
  }
  if (trash) empty_trash();
  if (sweep) sweep_externals();
  // Unlocked: whoever shows it may be Python.
  if (!warning.empty()) TORCH_WARN(warning);
}

// Empty when it was given before.
std::string Engine::pinned_warning(const OpInfo& info, const char* refusal, Bytes bytes) {
  if (!warned_.insert(info.id).second) return {};
  const std::string advice =
      info.warns ? "If it is deterministic and writes only what its schema says, "
                   "coop.allow_replay(\"" +
                       info.name.substr(0, info.name.find('.')) + "\") lets it be recomputed."
                 : "Clone the input under the budget to let them be recomputed.";
  const std::string what = info.unknown ? "what " + info.name + " is given and makes stays"
                                        : "results of " + info.name + " stay";
  return "coop: " + what + " in memory (" + std::to_string(bytes) + " bytes now): " + refusal +
         ". " + advice;
}

// A root was written without keeping its old bytes, since nothing seemed to need a record, and was
// read under another name; a result that got other memory needs one after all.
bool Engine::reads_what_is_gone(const Call& call) {
  for (const Write& write : call.operation.writes) {
    if (write.kind != Write::Kind::kRoot || write.old != nullptr) continue;
    for (const TensorArgument& tensor : call.tensors) {
      if (tensor.written || tensor.impl == nullptr || tensor.storage_bytes == 0) continue;
      if (write.storage == (tensor.storage != nullptr ? tensor.storage : external(tensor.impl))) {
        return true;
      }
    }
  }
  return false;
}

// The storages the operator made, in the order of its results.
void Engine::collect_fresh(Call& call, const Invocation& invocation) {
  invocation.for_each_result([&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const c10::TensorImpl& result = *tensor.unsafeGetTensorImpl();
    c10::StorageImpl* impl = result.unsafe_storage().unsafeGetStorageImpl();
    Storage* storage = find(impl);
    if (storage == nullptr || storage->handle != nullptr) return;
    set_handle(storage, impl);
    if (header_bytes_ > 0) {
      // From now on it may be evicted or moved, and the header is not kept.
      impl->_mutable_data_ptr_no_checks().release_context();
      impl->set_data_ptr_noswap(data_ptr(*storage));
    }
    if (storage->value->serial <= call.begin_serial) return;  // somebody else's
    call.fresh.push_back(storage);
    // Python must not be asked for sizes: this is under the lock.
    const auto itemsize = static_cast<double>(result.itemsize());
    call.bytes_moved += is_understood(result, call.fake)
                            ? static_cast<double>(result.numel()) * itemsize
                            : static_cast<double>(content_bytes(*storage));
    call.half |= result.itemsize() == 2;
  });
}

bool Call::covers(const TensorArgument& tensor, Bytes bytes) const {
  if (!tensor.written || !tensor.dense || tensor.before < 0) return false;
  const FrozenTensor& frozen = before[tensor.before];
  const Bytes covered = c10::multiply_integers(frozen.sizes(before_dimensions)) *
                        static_cast<Bytes>(frozen.dtype.itemsize());
  return frozen.offset == 0 && covered == bytes;
}

FrozenCall* Engine::freeze(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           const Invocation& invocation) {
  FrozenCall* frozen = records_.make(op);
  frozen->info = call.info;
  frozen->origin = {call.info->id, call.source};
  frozen->keys = keys;
  frozen->dispatch = c10::impl::tls_local_dispatch_key_set();
  frozen->flags = flags_.current(call.info->products, memory_->device().is_cuda());
  frozen->rng = std::move(call.rng);
  frozen->side = call.side;
  frozen->in_backward = torch::autograd::get_current_node() != nullptr;
  frozen->num_fresh = static_cast<uint32_t>(call.fresh.size());
  const std::vector<Write>& writes = call.operation.writes;
  frozen->tensors.reserve(call.tensors.size());
  for (const TensorArgument& tensor : call.tensors) {
    Dimensions* dimensions = &frozen->dimensions;
    FrozenTensor& target =
        tensor.before >= 0 ? frozen->tensors.emplace_back(call.before[tensor.before],
                                                          call.before_dimensions, dimensions)
        : tensor.tensor != nullptr ? frozen->tensors.emplace_back(*tensor.tensor, dimensions)
                                   : frozen->tensors.emplace_back();
    target.argument = tensor.argument;
    target.list_index = tensor.list_index;
    target.storage_bytes = static_cast<Bytes>(tensor.storage_bytes);
    if (target.defined && tensor.storage_bytes > 0) {
      Storage* storage = tensor.storage;
      Value* value = tensor.value;
      if (storage == nullptr) {
        storage = external(tensor.impl);
        value = storage->value;
      }
      for (size_t w = 0; w < writes.size(); ++w) {
        if (writes[w].storage != storage) continue;
        value = writes[w].old;
        const bool root = writes[w].kind == Write::Kind::kRoot;
        if (!root) target.write = static_cast<int32_t>(w);
        target.copy = root;
        // Covered in full and never read: any memory will do. Rule 7's statistics likewise.
        if (root ? value == nullptr
                 : call.info->overwrites && call.covers(tensor, content_bytes(*storage))) {
          value = nullptr;
          target.scratch_bytes = storage->bytes;
        }
      }
      if (value != nullptr) {
        target.input = static_cast<int32_t>(call.inputs.size());
        call.inputs.push_back(value);
      }
    }
  }
  // An overwritten value that is also read under another name must come back after all.
  for (FrozenTensor& target : frozen->tensors) {
    if (target.write < 0 || target.input >= 0) continue;
    for (const FrozenTensor& other : frozen->tensors) {
      if (other.write == target.write && other.input >= 0) {
        target.input = other.input;
        target.scratch_bytes = 0;
        break;
      }
    }
  }
  invocation.freeze(&frozen->arguments);
  // Behind those of the tensors: the shapes of what it made (see evicted_message).
  size_t num_found = 0;
  invocation.for_each_result([&](const at::Tensor& tensor) {
    if (num_found == call.fresh.size() || !tensor.defined() || !tensor.has_storage()) return;
    if (find(tensor.storage().unsafeGetStorageImpl()) != call.fresh[num_found]) return;
    ++num_found;
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    // Python must not be asked under the lock.
    const bool plain = tensor.layout() == c10::kStrided && !tensor.is_nested() &&
                       !impl.is_python_dispatch() && !impl.has_symbolic_sizes_strides();
    frozen->dimensions.push_back(plain ? impl.dim() : -1);
    if (plain) frozen->dimensions.append(impl.sizes().begin(), impl.sizes().end());
  });
  return frozen;
}

// --- replay ----------------------------------------------------------------------------------

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

}  // namespace

void FrozenCall::replay(Host& host, Storage** made) {
  static_cast<Engine&>(host).replay(*this, made);
}

void FrozenCall::retire(Host& host) { static_cast<Engine&>(host).retire(this); }

void SavedContent::save(Host& host, const Value& value) {
  static_cast<Engine&>(host).save(*this, value);
}

void SavedContent::replay(Host& host, Storage** made) {
  static_cast<Engine&>(host).replay(*this, made);
}

SavedBytes* Engine::new_saved_bytes(const Value& value) {
  constexpr double kBytesPerNs = 10;  // there and back again, about
  auto* record = new SavedContent();
  record->cost = std::ceil(2 * static_cast<double>(value.bytes) / kBytesPerNs);
  record->origin = {-1, 0};
  return record;
}

// To memory of the system's, of which copies are done, or the bytes taken, when they return.
void Engine::save(SavedContent& record, const Value& value) {
  try {
    record.bytes = std::make_unique_for_overwrite<std::byte[]>(value.bytes);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK(false, "coop: main memory has no room for " + std::to_string(value.bytes) +
                           " bytes that have to leave the arena and were not recorded, since the "
                           "last steps fitted: quiet_after=0 records every step");
  }
  memory_->copy(record.bytes.get(), address(value), value.bytes - header_bytes_);
}

void Engine::replay(SavedContent& saved, Storage** outputs) {
  attend();
  const RunScope scope(Side::kLeft, /*repeatable=*/true, /*replaying=*/true);
  const Bytes bytes = saved.outputs[0]->bytes;
  outputs[0] = core_.allocate(bytes, Side::kLeft);
  memory_->copy(address(*outputs[0]->value), saved.bytes.get(), bytes - header_bytes_);
}

void Engine::replay(FrozenCall& record, Storage** outputs) {
  attend();
  const size_t num_fresh = record.num_fresh;
  std::vector<Storage*> scratch;                        // freed after the run
  std::unordered_map<const Value*, Storage*> copies;    // one, under however many names
  std::vector<void*> addresses(record.tensors.size());  // null: no memory behind it
  const int64_t begin_serial = core_.graph().last_serial();
  auto clean_up = [&] {
    for (Storage* storage : scratch) core_.storage_died(storage);
  };
  auto discard_outputs = [&] {
    for (size_t i = 0; i < record.outputs.size(); ++i) {
      if (outputs[i] != nullptr) core_.storage_died(std::exchange(outputs[i], nullptr));
    }
  };
  std::optional<MainStreamScope> stream;
  if (memory_->device().is_cuda()) stream.emplace(memory_->device());
  // Memory for what the operator writes; everything it reads is resident and locked.
  const RunScope scope(record.side, /*repeatable=*/true, /*replaying=*/true);
  const Recorder::PauseScope unrecorded;
  const UnprofiledScope unprofiled;
  try {
    for (size_t i = 0; i < record.tensors.size(); ++i) {
      const FrozenTensor& tensor = record.tensors[i];
      Value* value = tensor.input >= 0 ? record.inputs[tensor.input].value : nullptr;
      Storage* storage = nullptr;
      if (tensor.write >= 0) {
        Storage*& output = outputs[num_fresh + tensor.write];
        if (output == nullptr) {
          output = value != nullptr ? core_.take_for_write(value, record)
                                    : core_.allocate(tensor.scratch_bytes, record.side);
        }
        storage = output;
      } else if (tensor.copy && value != nullptr) {
        Storage*& copy = copies[value];
        if (copy == nullptr) scratch.push_back(copy = core_.take_for_write(value, record));
        storage = copy;
      } else if (value == nullptr && tensor.scratch_bytes > 0) {
        storage = core_.allocate(tensor.scratch_bytes, record.side);
        scratch.push_back(storage);
      }
      if (storage != nullptr) value = storage->value;
      if (value == nullptr) continue;
      addresses[i] = address(*value);
      TORCH_CHECK(tensor.storage_bytes + header_bytes_ <= value->bytes, "coop: a replay of ",
                  record.info->name, " reads a storage that was resized without an operator");
    }
  } catch (...) {
    clean_up();
    discard_outputs();
    throw;
  }
  const Flags live = flags_.current(record.flags.products, record.flags.cuda);
  // Tensors must not be destroyed under the lock.
  mutex_.unlock();
  std::exception_ptr failure;
  size_t found = 0;
  {
    torch::jit::Stack stack;
    try {
      TORCH_CHECK(!record.info->deregistered,
                  "coop: results of " + record.info->name +
                      " are needed again, but its library was unloaded: keep it, or do not call "
                      "coop.allow_replay for it");
      running().origin = record.origin;
      std::unordered_map<void*, c10::Storage> views;
      const c10::IValue* plain = record.arguments.begin();
      for (const ArgumentKind kind : record.info->arguments) {
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
      for (size_t i = 0; i < record.tensors.size(); ++i) {
        const FrozenTensor& frozen = record.tensors[i];
        c10::IValue tensor;
        if (frozen.defined) {
          c10::Storage& view = views[addresses[i]];
          if (!view || addresses[i] == nullptr) {
            view = view_of(addresses[i], frozen.storage_bytes, frozen.device);
          }
          tensor = frozen.thaw(view, record.dimensions);
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
      const c10::impl::ForceDispatchKeyGuard dispatch(
          record.dispatch.included_, record.dispatch.excluded_ | c10::DispatchKeySet(kOurKey));
      const FlagsGuard flags(live, record.flags);
      std::optional<DrawLock> draws;
      std::optional<RngState::Guard> rng;
      if (record.rng.is_set()) {
        if (const int index = record.info->generator_argument; index >= 0) {
          stack[index] = record.rng.copy();
        } else {
          draws.emplace(record.rng.generator());
          rng.emplace(record.rng);
        }
      }
      const int64_t failures = running().failed_allocations;
      record.op.redispatchBoxed(record.keys, &stack);
      if (went_another_way(failures)) {
        throw BudgetExceeded(OutOfBudget(last_shortage()));
      }
      // Take the storages out of the tensors that were made.
      const size_t num_results = record.info->num_results;
      for (size_t i = stack.size() - num_results; i < stack.size(); ++i) {
        for_each_tensor(stack[i], [&](const at::Tensor& tensor, int32_t) {
          if (!tensor.defined() || !tensor.has_storage()) return;
          c10::StorageImpl* impl =
              tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
          Storage* storage = find(impl);
          if (storage == nullptr || storage->value->serial <= begin_serial) return;
          impl->_mutable_data_ptr_no_checks().release_context();
          num_storages_.fetch_sub(1, std::memory_order_relaxed);
          TORCH_CHECK(found < num_fresh, "coop: a replay of ", record.info->name,
                      " made more results than before");
          outputs[found++] = storage;
        });
      }
      TORCH_CHECK(found == num_fresh, "coop: a replay of ", record.info->name,
                  " made fewer results than before");
      for (size_t i = 0; i < num_fresh; ++i) {
        TORCH_CHECK(
            record.outputs[i] == nullptr || record.outputs[i]->bytes == outputs[i]->value->bytes,
            "coop: a replay of ", record.info->name, " made a result of another size");
      }
    } catch (...) {
      failure = std::current_exception();
    }
  }
  // While the lock is free: torch may trace what streams wait for.
  if (stream) {
    try {
      stream->finish();
    } catch (...) {
      if (failure == nullptr) failure = std::current_exception();
    }
  }
  mutex_.lock();
  core_.set_origin(record.origin);
  clean_up();
  if (failure == nullptr) return;
  discard_outputs();
  try {
    std::rethrow_exception(failure);
  } catch (const BudgetExceeded& error) {
    OutOfBudget cause(error.shortage);
    cause.replaying = record.info->name;
    throw cause;
  }
}

}  // namespace coop
