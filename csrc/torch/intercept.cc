// The way of an operator: gather, begin (materialize and lock), run; record.cc has the rest.
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <typeinfo>

#include "core/clock.h"
#include "torch/engine.h"
#include "torch/running.h"
#include "torch/source.h"
#include "torch/tensor_kinds.h"

namespace coop {

namespace {

// Operators may nest (a custom operator written in Python), so each depth has a call of its own.
class CallLease {
 public:
  CallLease() : pool_(pool()) {
    if (pool_.depth == pool_.calls.size()) pool_.calls.push_back(std::make_unique<Call>());
    call_ = pool_.calls[pool_.depth++].get();
  }
  ~CallLease() {
    call_->clear();
    --pool_.depth;
  }
  CallLease(const CallLease&) = delete;
  CallLease& operator=(const CallLease&) = delete;
  Call& operator*() { return *call_; }

 private:
  struct Pool {
    std::vector<std::unique_ptr<Call>> calls;
    size_t depth = 0;
  };
  static Pool& pool() {
    static thread_local Pool instance;
    return instance;
  }
  Pool& pool_;
  Call* call_;
};

// Memory that others can write behind torch's back: NumPy arrays and other foreign buffers.
bool is_foreign(const c10::DataPtr& data) {
  static const c10::DeleterFnPtr foreign = c10::InefficientStdFunctionContext::makeDataPtr(
                                               nullptr, [](void*) {}, c10::kCPU)
                                               .get_deleter();
  return data.get_deleter() == foreign;
}

// Torch gives a tensor that it resizes (`out=`) its new sizes first. If there was no room for its
// new memory, it gets its old sizes back: nobody must write its old memory as if it were the new
// one.
void restore_sizes(const Call& call) {
  if (!call.records) return;
  for (const TensorArgument& entry : call.tensors) {
    if (!entry.written || entry.before < 0) continue;
    const FrozenTensor& frozen = call.before[entry.before];
    const c10::IntArrayRef sizes = frozen.sizes(call.before_dimensions);
    const c10::IntArrayRef strides = frozen.strides(call.before_dimensions);
    if (entry.tensor->sizes() == sizes && entry.tensor->strides() == strides) continue;
    const c10::StorageImpl* impl = entry.tensor->unsafe_storage().unsafeGetStorageImpl();
    if (impl != entry.impl || impl->nbytes() != entry.storage_bytes) continue;
    entry.tensor->set_sizes_and_strides(sizes, strides, frozen.offset);
  }
}

// The leaf whose gradient this thread is accumulating; undefined when it does something else.
at::Tensor accumulating_leaf() {
  using torch::autograd::AccumulateGrad;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return {};
  // Nothing derives from it, so that there is no need for a dynamic_cast.
  const torch::autograd::Node& running = *node;
  if (typeid(running) != typeid(AccumulateGrad)) return {};
  return static_cast<const AccumulateGrad&>(running).variable;
}

// Whether the operator copies its first argument as it is. (Autocast's copies are of another type.)
bool is_plain_copy(const Call& call, const Invocation& invocation) {
  if (!call.info->copies || call.info->has_writes) return false;
  // A clone has a memory format there: at most another layout.
  if (call.info->arguments.size() == 2) return true;
  const c10::IValue dtype = invocation.argument(1);
  return dtype.isNone() ||
         c10::scalarTypeToTypeMeta(dtype.toScalarType()) == call.tensors.front().tensor->dtype();
}

}  // namespace

// Whatever fails on the way of an operator, what it has locked and is about to write is let go of.
class Engine::CallScope {
 public:
  CallScope(Engine& engine, Call& call) : engine_(engine), call_(call) {}
  ~CallScope() {
    if (call_.state == Call::State::kNone) return;
    const EngineLock guard(engine_);
    if (call_.traced && engine_.recorder_ != nullptr) engine_.recorder_->abort();
    call_.traced = false;
    if (call_.state == Call::State::kBegun) {
      engine_.core_.abort(call_.operation);
    } else {
      // What it wrote stays written.
      engine_.core_.commit(call_.operation, nullptr, nullptr, 0, nullptr, 0, 0);
    }
    call_.state = Call::State::kNone;
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  Engine& engine_;
  Call& call_;
};

void Engine::intercept(const OpInfo& info, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       Invocation& invocation) {
  const at::Tensor leaf = info.accumulates ? accumulating_leaf() : at::Tensor();
  const uint16_t source = records_sources() ? current_source() : 0;
  if (info.passes_through) {
    if (info.takes_storages) {
      run_on_storages(info, keys, invocation);
    } else {
      invocation.run(keys);
    }
    if (leaf.defined()) root_gradient(leaf, invocation);
    return;
  }
  CallLease lease;
  Call& call = *lease;
  call.info = &info;
  call.source = source;
  const CallScope scope(*this, call);
  gather(call, invocation);
  for (int attempt = 0;;) {
    try {
      begin(call);
      run(call, keys, invocation);
      break;
    } catch (const BudgetExceeded& error) {
      if (!make_room(call, invocation, error.shortage.wanted, &attempt)) {
        throw_out_of_budget(info.name, error.replaying, error.shortage);
      }
    }
  }
  record(call, op, keys, invocation);
  if (leaf.defined()) root_gradient(leaf, invocation);
}

// The last resort.
bool Engine::make_room(Call& call, Invocation& invocation, Bytes wanted, int* attempt) {
  if (!call.repeatable) return false;
  {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
    if (!core_.make_room(call.storages.data(), call.storages.size(), wanted, attempt)) return false;
  }
  invocation.reset();
  return true;
}

// set_ looks at the memory behind its arguments, although it neither reads nor writes it.
void Engine::run_on_storages(const OpInfo& info, c10::DispatchKeySet keys, Invocation& invocation) {
  std::vector<c10::StorageImpl*> impls;
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    const c10::IValue argument = invocation.argument(i);
    if (argument.isStorage()) {
      impls.push_back(argument.toStorage().unsafeGetStorageImpl());
    } else if (argument.isTensor() && argument.toTensor().has_storage()) {
      impls.push_back(argument.toTensor().storage().unsafeGetStorageImpl());
    }
  }
  Operation operation;
  try {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
    std::vector<Storage*> storages;
    for (c10::StorageImpl* impl : impls) {
      Storage* storage = look_up(impl);
      if (storage == nullptr) continue;
      storages.push_back(storage);
      if (recorder_ != nullptr) recorder_->materialize(storage);
    }
    core_.begin(operation, storages.data(), storages.size());
  } catch (const OutOfBudget& error) {
    throw_out_of_budget(info.name, error.replaying, error.shortage);
  }
  auto unlock = [&] {
    const EngineLock guard(*this);
    core_.abort(operation);
  };
  try {
    invocation.run(keys);
  } catch (...) {
    unlock();
    throw;
  }
  unlock();
}

// --- 1. intercept -----------------------------------------------------------------------------

void Engine::gather(Call& call, const Invocation& invocation) {
  const OpInfo& info = *call.info;
  call.fake = invocation.is_fake();
  call.refusal = info.refusal;
  // What an optimizer writes in place becomes a root: there is nothing to freeze.
  const bool optimizing = is_optimizing();
  call.records = info.refusal == nullptr && (info.has_fresh_outputs || !optimizing);
  bool writes = info.has_writes;
  if (info.training_argument >= 0) {
    const c10::IValue training = invocation.argument(info.training_argument);
    writes = training.isBool() && training.toBool();
  }
  invocation.for_each_tensor([&](const at::Tensor& tensor, int32_t argument, int32_t list_index) {
    add_tensor(call, tensor, argument, list_index, writes && info.writes[argument]);
  });
  find_storages(call);
  for (const TensorArgument& entry : call.tensors) check(call, entry);
  if (info.dropout_argument >= 0 && invocation.argument(info.dropout_argument).toDouble() != 0) {
    call.refusal = "cuDNN's dropout state cannot be captured";
  }
  // What is brought in from outside is a root like any other: everything is computed from it, so
  // were it evicted, all that is evicted would be one neighbourhood.
  const bool known = call.refusal == nullptr || call.refusal == kForeign;
  if (info.copies && known && !call.tensors.empty() && call.tensors.front().impl != nullptr &&
      call.tensors.front().storage == nullptr && call.understood &&
      is_plain_copy(call, invocation)) {
    call.refusal = kInput;
  }
  if (!memory_->on_main_stream()) call.refusal = kOtherStream;
  const bool factory = call.tensors.empty();
  const bool left = info.expensive || (factory && !optimizing);
  call.side = left ? Side::kLeft : Side::kRight;
}

namespace {

// Where the last of its elements ends in its storage.
size_t end_bytes(const at::Tensor& tensor, int64_t numel, bool dense) {
  if (numel == 0) return 0;
  int64_t last = tensor.storage_offset();
  if (dense) {
    last += numel - 1;
  } else {
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  }
  return static_cast<size_t>(last + 1) * tensor.itemsize();
}

}  // namespace

// Not under the lock: a tensor may be one of Python's, which is asked for its sizes.
void Engine::add_tensor(Call& call, const at::Tensor& tensor, int32_t argument, int32_t list_index,
                        bool written) {
  TensorArgument& entry = call.tensors.emplace_back();
  entry.argument = argument;
  entry.list_index = list_index;
  entry.written = written;
  if (!tensor.defined()) return;
  if (written && list_index < 0) entry.parameter = tensor.requires_grad() && tensor.is_leaf();
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!is_understood(impl, call.fake) || !impl.has_storage()) {
    // What it is made of is used, but the operator is not recorded: see Note [Kinds of tensors].
    call.understood = false;
    if (impl.has_storage()) {
      entry.impl = impl.unsafe_storage().unsafeGetStorageImpl();
      entry.storage_bytes = entry.impl->sym_nbytes().maybe_as_int().value_or(0);
    }
    for_each_part(tensor, [&](const at::Tensor& part) {
      // Torch makes some of the parts for us, and their sizes are not the tensor's.
      const size_t index = call.tensors.size();
      add_tensor(call, part, argument, list_index, written);
      call.tensors[index].tensor = nullptr;
      call.tensors[index].before = -1;
      call.parts.push_back(part);
    });
    return;
  }
  entry.tensor = tensor.unsafeGetTensorImpl();
  // Statistics keep their sizes.
  if (call.records && call.info->has_writes && !call.info->writes_statistics) {
    entry.before = static_cast<int32_t>(call.before.size());
    call.before.emplace_back(*entry.tensor, &call.before_dimensions);
  }
  entry.impl = tensor.storage().unsafeGetStorageImpl();
  entry.storage_bytes = entry.impl->nbytes();
  entry.dense = tensor.is_non_overlapping_and_dense();
  const int64_t numel = tensor.numel();
  entry.scalar = numel <= 1;
  entry.end_bytes = end_bytes(tensor, numel, entry.dense);
  call.bytes_moved += static_cast<double>(numel) * static_cast<double>(tensor.itemsize());
  call.half |= tensor.itemsize() == 2;
}

// Whether a NumPy array shares memory that torch allocated, as far as the storage tells: torch
// makes one whose memory it hands to NumPy one that cannot be resized. That is how we know of
// arrays from before the budget. Memory of an earlier budget has our deleters.
bool Engine::is_numpys(c10::StorageImpl& impl) {
  if (impl.resizable()) return false;
  static const c10::DeleterFnPtr torchs = c10::GetDefaultCPUAllocator()->raw_deleter();
  const c10::DeleterFnPtr deleter = impl._mutable_data_ptr_no_checks().get_deleter();
  return deleter == torchs || deleter == &Engine::delete_storage ||
         deleter == &Engine::delete_address;
}

// Whether the operator can be replayed, as far as this tensor goes. Not under the lock: another
// engine may have to bring it back.
void Engine::check(Call& call, const TensorArgument& entry) const {
  if (entry.storage_bytes == 0) return;
  if (entry.storage != nullptr) {
    // Torch gives a tensor its new sizes first and its memory then, which may fail in between.
    TORCH_CHECK(entry.end_bytes <= entry.storage_bytes,
                "coop: a tensor needs " + std::to_string(entry.end_bytes) +
                    " bytes, but its storage has " + std::to_string(entry.storage_bytes) +
                    ": torch was resizing it when that failed with an error. Make it anew.");
    if (entry.shared) call.refusal = kForeign;
    return;
  }
  const c10::DataPtr& data = entry.impl->_mutable_data_ptr_no_checks();
  const bool elsewhere = data.device() != memory_->device();
  if (Engine* other = elsewhere ? active_engine(data.device()) : nullptr) {
    call.refusal = kOtherDevice;
    borrow(call, entry, other);
  } else if (data.get() == nullptr && data.get_context() == nullptr) {
    call.understood = false;
  } else if (elsewhere) {
    // Small ones are scalars; the rest are copies from another device.
    if (!entry.scalar) call.refusal = kOtherDevice;
  } else if (c10::impl::cow::is_cow_data_ptr(data)) {
    call.refusal = "copy-on-write storages are not tracked";
  } else if (is_foreign(data) || entry.shared || is_numpys(*entry.impl)) {
    call.refusal = kForeign;
  }
}

// What another device's engine has of it stays while the operator runs, which may allocate there.
void Engine::borrow(Call& call, const TensorArgument& entry, Engine* owner) {
  try {
    // It does not see the operator.
    if (entry.written) owner->before_unseen_write(entry.impl);
    if (call.info->unknown) owner->pin(entry.impl, call.info->refusal, /*for_good=*/true);
    Loan& loan = call.loans.emplace_back(owner, Operation());
    owner->lend(entry.impl, &loan.operation);
  } catch (const OutOfBudget& error) {
    throw_out_of_budget(call.info->name, error.replaying, error.shortage);
  }
}

// --- 2. materialize ----------------------------------------------------------------------------

void Engine::begin(Call& call) {
  const OpInfo& info = *call.info;
  const bool in_step = is_optimizing();
  std::vector<Write>& writes = call.operation.writes;
  writes.clear();
  call.state = Call::State::kBegun;
  std::unique_lock<MaterializerMutex> materializer(materializer_, std::defer_lock);
  // Preparing a write may replay.
  if (info.has_writes) materializer.lock();
  EngineLock lock(*this);
  // Traces and reports tell of records, and whoever evicts everything means it.
  call.operation.quiet =
      core_.is_quiet() && recorder_ == nullptr && !core_.events().enabled && !config_.paranoid;
  if (info.has_writes) {
    const bool make_root = in_step || info.writes_statistics || !call.understood || info.unknown;
    const int64_t mark = core_.graph().new_mark();
    bool records = info.has_fresh_outputs;
    for (const TensorArgument& tensor : call.tensors) {
      records |= tensor.written && !make_root && !tensor.parameter && tensor.storage != nullptr &&
                 tensor.storage->keeps == 0 && tensor.storage->value->is_version();
    }
    records &= call.understood && call.refusal == nullptr && !call.operation.quiet;
    for (const TensorArgument& tensor : call.tensors) {
      if (!tensor.written || tensor.impl == nullptr || tensor.storage_bytes == 0) continue;
      Storage* storage = tensor.storage;
      if (storage == nullptr) {
        // Memory of others matters if a record reads it, or will.
        if (!records && externals_.count(tensor.impl) == 0) continue;
        storage = external(tensor.impl);
      }
      if (storage->value->mark == mark) continue;  // under another name
      storage->value->mark = mark;
      Write& write = writes.emplace_back();
      write.storage = storage;
      // What is pinned could not be brought back to its address, were it half written.
      write.make_root = make_root || tensor.parameter || storage->keeps > 0;
      // What is overwritten may be read under another name.
      const bool reads = !info.overwrites ||
                         std::any_of(call.tensors.begin(), call.tensors.end(), [&](const auto& t) {
                           return t.impl == tensor.impl && !t.written;
                         });
      write.keep_old = records && !info.writes_statistics && reads;
    }
  }
  bool evicted = false;
  for (const Storage* storage : call.storages) evicted |= !storage->value->is_resident();
  if (evicted && !materializer.owns_lock()) {
    lock.unlock();
    materializer.lock();
    lock.lock();
  }
  running().origin = {info.id, call.source};
  core_.set_origin(running().origin);
  call.begin_serial = core_.graph().last_serial();
  std::vector<Storage*> loose;
  if (info.unknown) loose = find_loose(call);
  try {
    core_.begin(call.operation, call.storages.data(), call.storages.size());
    for (Storage* storage : loose) {
      pin(storage, info.refusal);
      call.fixed_bytes += content_bytes(*storage);
    }
    if (call.refusal == kOtherStream) {
      // The stream may read them at any time until it is done, which is not known before they die.
      for (Storage* storage : call.storages) {
        memory_->used(storage);
        pin(storage, "used by another stream");
      }
    }
    if (info.shares_memory) {
      for (Storage* storage : call.storages) {
        if (recorder_ != nullptr) recorder_->expose(storage, nullptr);
        core_.expose(storage);
        core_.keep(storage, info.refusal, /*for_good=*/true);
        make_simple(*storage);
      }
    }
  } catch (const OutOfBudget& error) {
    core_.abort(call.operation);
    call.state = Call::State::kNone;
    throw BudgetExceeded(error);
  }
  for (TensorArgument& tensor : call.tensors) {
    if (tensor.storage != nullptr) tensor.value = tensor.storage->value;
  }
  if (recorder_ != nullptr) {
    recorder_->begin(call);
    call.traced = true;
  }
  const bool trash = is_trash_full();
  lock.unlock();
  if (trash) empty_trash();
}

// Rule 9: what could still be evicted or moved of an operator's arguments. It writes them for as
// long as it likes (a collective goes on after it has returned), so they stay where they are; who
// goes on using their memory keeps them alive, as without a budget.
std::vector<Storage*> Engine::find_loose(const Call& call) const {
  std::vector<Storage*> result;
  for (Storage* storage : call.storages) {
    const Value* value = storage->value;
    if (value->arena != &core_.arena() || (value->stays() && !value->gradient)) continue;
    if (storage->keep_reason == call.info->refusal) continue;
    if (std::find(result.begin(), result.end(), storage) == result.end()) result.push_back(storage);
  }
  return result;
}

// --- 3. run ------------------------------------------------------------------------------------

void Engine::run(Call& call, c10::DispatchKeySet keys, Invocation& invocation) {
  const OpInfo& info = *call.info;
  std::optional<DrawLock> draws;
  if (info.seeded && !invocation.is_fake()) {
    c10::IValue argument;
    if (info.generator_argument >= 0) argument = invocation.argument(info.generator_argument);
    const at::Generator generator =
        argument.isNone() ? default_generator(memory_->device()) : argument.toGenerator();
    // One of Python's is made of operators that draw.
    if (info.builtin) draws.emplace(generator);
    call.rng = RngState(generator);
  }
  // What may have been half written cannot be brought back, if it is a root.
  call.repeatable = call.refusal == nullptr;
  for (const Write& write : call.operation.writes) {
    call.repeatable &= write.kind != Write::Kind::kRoot;
  }
  const int64_t failures = running().failed_allocations;
  try {
    const c10::impl::ExcludeDispatchKeyGuard nested(kOurKey);
    const RunScope scope(call.side, call.repeatable);
    const int64_t begin_ns = config_.measure ? now_ns() : 0;
    invocation.run(keys);
    if (config_.measure) call.measured = static_cast<Cost>(now_ns() - begin_ns);
    call.state = Call::State::kRan;
    if (went_another_way(failures)) {
      call.repeatable = false;  // it may go that way at once, and not be seen
      invocation.reset();
      throw BudgetExceeded(OutOfBudget(last_shortage()));
    }
  } catch (const BudgetExceeded&) {
    {
      const EngineLock guard(*this);
      if (recorder_ != nullptr) recorder_->abort();
      call.traced = false;
      // It has given an argument other memory already (`out=` of another size).
      for (const Write& write : call.operation.writes) call.repeatable &= !write.storage->dead;
      core_.abort(call.operation);
      call.state = Call::State::kNone;
    }
    restore_sizes(call);
    if (call.rng.is_set()) call.rng.restore();
    throw;
  } catch (...) {
    // As without a budget: what the operator had written by then stays written.
    const EngineLock guard(*this);
    if (recorder_ != nullptr) recorder_->commit(call, 0, 0, /*replayable=*/false);
    call.traced = false;
    core_.commit(call.operation, nullptr, nullptr, 0, nullptr, 0, 0);
    call.state = Call::State::kNone;
    throw;
  }
}

// --- Rule 11: gradients --------------------------------------------------------------------------

// A closure that an optimizer calls (LBFGS) runs with gradients on: it is not the update.
bool Engine::is_optimizing() const {
  return in_step_.load(std::memory_order_relaxed) && !at::GradMode::is_enabled();
}

// A leaf with a gradient is a parameter, or is used as one: optimizers will write both.
void Engine::root_gradient(const at::Tensor& leaf, const Invocation& invocation) {
  const at::Tensor* gradient = nullptr;
  invocation.for_each_result([&](const at::Tensor& result) { gradient = &result; });
  bool trash = false;
  {
    const std::lock_guard<MaterializerMutex> materializer(materializer_);
    const EngineLock guard(*this);
    for (const at::Tensor* tensor : {&leaf, gradient}) {
      if (!tensor->defined() || !tensor->has_storage()) continue;
      Storage* storage = find(tensor->storage().unsafeGetStorageImpl());
      if (storage != nullptr && recorder_ != nullptr) {
        recorder_->stored(storage, /*gradient=*/tensor == gradient);
      }
      if (storage == nullptr || storage->value->stays()) continue;
      try {
        core_.materialize(storage);
      } catch (const OutOfBudget&) {
        continue;  // it stays recomputable
      }
      if (tensor == &leaf) {
        core_.make_root(storage);
      } else {
        core_.make_gradient(storage);
      }
    }
    trash = is_trash_full();
  }
  if (trash) empty_trash();
}

bool Engine::may_move_gradients() const {
  return torch::autograd::get_current_node() != nullptr || is_optimizing();
}

// Where cuDNN's benchmark mode chooses by trying, what does not fit is passed over.
bool Engine::may_retry() const {
  return running().repeatable && !at::globalContext().benchmarkCuDNN();
}

bool Engine::is_replaying() const { return running().replaying; }

}  // namespace coop
