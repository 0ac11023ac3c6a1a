#include "adapter/trace/recorder.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>

#include "adapter/call/call.h"
#include "adapter/call/running.h"

namespace coop {

// An operator between begin and commit. Operators may nest, so there is a stack of them.
struct PendingOperator {
  std::vector<int64_t> inputs;
  std::vector<int64_t> writes;
  std::vector<int64_t> overwrites;
  std::vector<int64_t> make_roots;  // of what is written
  bool keep_old = false;
  struct Step {
    const Storage* storage;  // null: a free
    Bytes bytes;
    size_t freed;  // the step that allocated what is freed
    bool gone = false;
  };
  std::vector<Step> memory;
  std::unordered_map<const Storage*, size_t> own;  // step by storage
  std::vector<int64_t> deaths;                     // of what is older than the operator
};

namespace {

struct ThreadState {
  std::vector<PendingOperator> operators;
  int paused = 0;
};

ThreadState& thread_state() {
  static thread_local ThreadState state;
  return state;
}

// What libraries on a GPU are known to take beside the results, where it is not small: convolutions
// rearrange one of their tensors, attention accumulates its gradients in float32, and sorting needs
// its keys twice. Estimates: the trace says so.
Bytes estimated_temporary(const Call& call) {
  const OpInfo& info = *call.info;
  double largest = 0;
  double first = 0;
  for (const TensorArgument& tensor : call.operands.tensors) {
    if (first == 0) first = static_cast<double>(tensor.storage_bytes);
    largest = std::max(largest, static_cast<double>(tensor.storage_bytes));
  }
  for (const Storage* storage : call.fresh) {
    largest = std::max(largest, static_cast<double>(storage->bytes));
  }
  switch (info.flops) {
    case FlopFormula::kConvolution:
    case FlopFormula::kConvolutionBackward:
      return static_cast<Bytes>(largest);
    case FlopFormula::kAttentionBackward:
      return static_cast<Bytes>(call.operands.half ? 2 * first : first);
    default:
      break;
  }
  const bool sorts = info.name.rfind("aten::sort", 0) == 0 ||
                     info.name.rfind("aten::topk", 0) == 0 ||
                     info.name.rfind("aten::embedding_dense_backward", 0) == 0;
  return sorts ? static_cast<Bytes>(2 * largest) : 0;
}

}  // namespace

Recorder::PauseScope::PauseScope() { ++thread_state().paused; }
Recorder::PauseScope::~PauseScope() { --thread_state().paused; }

// What is held already is a root of the trace, however it was made.
Recorder::Recorder(const Core& core, Bytes header_bytes, const Options& options, EntrySink& sink)
    : header_bytes_(header_bytes), options_(options), sink_(sink) {
  thread_state().operators.clear();
  core.graph().for_each_storage([&](const Storage* storage) {
    if (storage->value->external == nullptr) root(define(storage), storage->bytes);
  });
}

int64_t Recorder::define(const Storage* storage) {
  const int64_t id = next_id_++;
  ids_[storage] = id;
  return id;
}

void Recorder::mark(EntryKind kind, const Storage* storage) {
  const auto found = ids_.find(storage);
  if (found != ids_.end()) mark(kind, found->second);
}

int64_t Recorder::external(c10::StorageImpl* impl) {
  const auto found = externals_.find(impl);
  if (found != externals_.end()) return found->second.id;
  const int64_t id = next_id_++;
  auto strong = c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl);
  externals_.emplace(impl, External{id, c10::weak_intrusive_ptr<c10::StorageImpl>(strong)});
  sink_.add({EntryKind::kExternal, id, static_cast<Bytes>(impl->nbytes()) + header_bytes_});
  return id;
}

void Recorder::sweep_externals() {
  for (auto it = externals_.begin(); it != externals_.end();) {
    if (it->second.storage.expired()) {
      mark(EntryKind::kFree, it->second.id);
      it = externals_.erase(it);
    } else {
      ++it;
    }
  }
}

void Recorder::expose(const Storage* storage, c10::StorageImpl* impl) {
  if (storage->value->external != nullptr) {
    mark(EntryKind::kExpose, external(impl));
  } else {
    mark(EntryKind::kExpose, storage);
  }
}

void Recorder::unseen_write(const Storage* storage, c10::StorageImpl* impl) {
  if (storage != nullptr) {
    mark(EntryKind::kUnseenWrite, storage);
    return;
  }
  const auto found = externals_.find(impl);
  if (found == externals_.end()) return;
  mark(EntryKind::kUnseenWrite, found->second.id);
  mark(EntryKind::kFree, found->second.id);  // it is got to know anew
  externals_.erase(found);
}

void Recorder::allocated(const Storage* storage, Bytes bytes) {
  ThreadState& thread = thread_state();
  if (thread.paused > 0) return;
  if (!thread.operators.empty()) {
    PendingOperator& pending = thread.operators.back();
    pending.own[storage] = pending.memory.size();
    pending.memory.push_back({storage, bytes, 0});
  } else if (running().depth == 0) {
    root(define(storage), bytes + header_bytes_);
  }
}

void Recorder::died(const Storage* storage) {
  std::vector<PendingOperator>& operators = thread_state().operators;
  for (auto pending = operators.rbegin(); pending != operators.rend(); ++pending) {
    const auto own = pending->own.find(storage);
    if (own == pending->own.end()) continue;
    pending->memory[own->second].gone = true;
    pending->memory.push_back({nullptr, 0, own->second});
    pending->own.erase(own);
    return;
  }
  const auto found = ids_.find(storage);
  if (found == ids_.end()) return;
  if (operators.empty()) {
    mark(EntryKind::kFree, found->second);
  } else {
    operators.back().deaths.push_back(found->second);  // after the operator that uses it
  }
  ids_.erase(found);
}

void Recorder::begin(const Call& call) {
  PendingOperator& pending = thread_state().operators.emplace_back();
  const OpInfo& info = *call.info;
  auto id_of = [&](const TensorArgument& tensor) -> int64_t {
    if (tensor.storage == nullptr) {
      const bool used = tensor.impl != nullptr && tensor.storage_bytes > 0;
      return used ? external(tensor.impl) : -1;
    }
    const auto found = ids_.find(tensor.storage);
    if (found != ids_.end()) return found->second;
    // Made by an operator that began before the recording.
    const int64_t id = define(tensor.storage);
    root(id, tensor.storage->bytes);
    return id;
  };
  for (const TensorArgument& tensor : call.operands.tensors) {
    const int64_t id = id_of(tensor);
    if (id >= 0) pending.inputs.push_back(id);
  }
  for (const Write& write : call.operation.writes) {
    int64_t id = -1;
    for (const TensorArgument& tensor : call.operands.tensors) {
      const bool same = tensor.storage != nullptr ? tensor.storage == write.storage
                                                  : tensor.impl == write.storage->handle;
      if (!same) continue;
      id = id_of(tensor);
    }
    if (id < 0) continue;
    (write.overwrites ? pending.overwrites : pending.writes).push_back(id);
    if (write.make_root) pending.make_roots.push_back(id);
  }
  // The core adds the cases that depend on what happens to be a root.
  pending.keep_old =
      info.has_fresh_outputs && call.is_replayable() && !info.writes_statistics && !info.overwrites;
}

void Recorder::abort() {
  std::vector<PendingOperator>& operators = thread_state().operators;
  if (operators.empty()) return;
  PendingOperator pending = std::move(operators.back());
  operators.pop_back();
  for (const int64_t id : pending.deaths) mark(EntryKind::kFree, id);
}

void Recorder::commit(const Call& call, Cost cost, double flops, bool replayable) {
  std::vector<PendingOperator>& operators = thread_state().operators;
  if (operators.empty()) return;
  PendingOperator pending = std::move(operators.back());
  operators.pop_back();

  OperatorEntry entry;
  entry.cost = std::trunc(cost);
  entry.flops = std::trunc(flops);
  entry.moved_bytes = std::trunc(static_cast<double>(call.operands.bytes_moved));
  entry.half = call.operands.half;
  const bool optimizing = in_step_ && !at::GradMode::is_enabled();
  entry.backward = optimizing || torch::autograd::get_current_node() != nullptr;
  entry.side = call.side;
  entry.replayable = replayable;
  entry.undefined = call.operation.undefined;
  for (const Storage* storage : call.fresh) {
    entry.outputs.push_back(define(storage));
    entry.output_bytes.push_back(storage->bytes);
  }
  add_memory(call, pending, entry);
  entry.inputs = std::move(pending.inputs);
  entry.writes = std::move(pending.writes);
  entry.overwrites = std::move(pending.overwrites);
  std::vector<int64_t> written = entry.writes;
  written.insert(written.end(), entry.overwrites.begin(), entry.overwrites.end());
  for (const int64_t id : pending.make_roots) {
    const auto found = std::find(written.begin(), written.end(), id);
    entry.make_roots.push_back(static_cast<int32_t>(found - written.begin()));
  }
  entry.keep_old = entry.writes.empty() ? entry.usually_keeps_old() : pending.keep_old;
  sink_.add(entry, call.info->name, source_of(call));
  for (const int64_t id : pending.deaths) mark(EntryKind::kFree, id);
}

// Temporaries are numbered by themselves. What is neither freed nor a result stays for others.
void Recorder::add_memory(const Call& call, const PendingOperator& pending, OperatorEntry& entry) {
  using Kind = MemoryStep::Kind;
  std::unordered_map<const Storage*, size_t> outputs;
  for (const Storage* storage : call.fresh) outputs.emplace(storage, outputs.size());
  std::vector<int64_t> numbers(pending.memory.size(), -1);
  int64_t num_temporaries = 0;
  size_t num_outputs = 0;
  bool plain = true;  // the outputs in their order
  for (size_t i = 0; i < pending.memory.size(); ++i) {
    const PendingOperator::Step& step = pending.memory[i];
    const auto output = outputs.find(step.storage);
    if (step.storage != nullptr && !step.gone && output != outputs.end()) {
      plain &= output->second == num_outputs++;
      entry.memory.push_back({Kind::kOutput, static_cast<int64_t>(output->second)});
    } else if (options_.estimate_temporaries && (step.gone || step.storage == nullptr)) {
      continue;
    } else if (step.storage == nullptr) {
      entry.memory.push_back({Kind::kFree, numbers[step.freed]});
    } else if (step.gone) {
      plain = false;
      numbers[i] = num_temporaries++;
      entry.memory.push_back({Kind::kTemporary, step.bytes + header_bytes_});
    } else {
      plain = false;
      entry.memory.push_back({Kind::kRoot, static_cast<int64_t>(entry.roots.size())});
      entry.roots.emplace_back(define(step.storage), step.bytes + header_bytes_);
    }
  }
  if (options_.estimate_temporaries) {
    if (const Bytes bytes = estimated_temporary(call); bytes > 0) {
      plain = false;
      entry.memory.push_back({Kind::kTemporary, bytes + header_bytes_});
    }
  }
  if (plain) entry.memory.clear();
}

std::string Recorder::source_of(const Call& call) {
  if (!options_.source_lines || call.source == 0) return {};
  if (call.source >= sources_.size()) sources_ = sources();
  const SourceLine& line = sources_[call.source];
  return line.file + ":" + std::to_string(line.line) + (line.backward ? " (backward)" : "");
}

void Recorder::begin_step() {
  if (std::exchange(in_step_, true)) return;  // the last one failed
  sink_.add({EntryKind::kBeginStep});
}

void Recorder::end_step(bool boundary) {
  if (!std::exchange(in_step_, false)) sink_.add({EntryKind::kBeginStep});
  sink_.add({boundary ? EntryKind::kEndStep : EntryKind::kEndStepInside});
  sweep_externals();
}

}  // namespace coop
