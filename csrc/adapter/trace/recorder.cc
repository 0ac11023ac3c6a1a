#include "adapter/trace/recorder.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <charconv>

#include "adapter/call/call.h"
#include "adapter/call/running.h"

namespace coop {

namespace {

// An operator between begin and commit. Operators may nest, so there is a stack of them.
struct Pending {
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

struct ThreadState {
  std::vector<Pending> operators;
  int paused = 0;
};

ThreadState& thread_state() {
  static thread_local ThreadState state;
  return state;
}

void append(std::string& out, int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  out.append(digits, end);
}

void append_quoted(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  out += '"';
}

void append_list(std::string& out, const char* key, const std::vector<int64_t>& numbers) {
  if (numbers.empty()) return;
  out += ",\"";
  out += key;
  out += "\":[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    append(out, numbers[i]);
  }
  out += ']';
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
Recorder::Recorder(const Core& core, Bytes header_bytes, const Options& options)
    : header_bytes_(header_bytes), options_(options) {
  thread_state().operators.clear();
  core.graph().for_each_storage([&](const Storage* storage) {
    if (storage->value->external == nullptr) root(define(storage), storage->bytes - header_bytes_);
  });
}

int64_t Recorder::define(const Storage* storage) {
  const int64_t id = next_id_++;
  ids_[storage] = id;
  return id;
}

void Recorder::root(int64_t id, Bytes bytes) {
  lines_ += "{\"root\":";
  append(lines_, id);
  lines_ += ",\"bytes\":";
  append(lines_, bytes);
  lines_ += "}\n";
}

void Recorder::mark(const char* kind, int64_t id) {
  lines_ += "{\"";
  lines_ += kind;
  lines_ += "\":";
  append(lines_, id);
  lines_ += "}\n";
}

void Recorder::mark(const char* kind, const Storage* storage) {
  const auto found = ids_.find(storage);
  if (found != ids_.end()) mark(kind, found->second);
}

int64_t Recorder::external(c10::StorageImpl* impl) {
  const auto found = externals_.find(impl);
  if (found != externals_.end()) return found->second.id;
  const int64_t id = next_id_++;
  auto strong = c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl);
  externals_.emplace(impl, External{id, c10::weak_intrusive_ptr<c10::StorageImpl>(strong)});
  lines_ += "{\"external\":";
  append(lines_, id);
  lines_ += ",\"bytes\":";
  append(lines_, static_cast<int64_t>(impl->nbytes()));
  lines_ += "}\n";
  return id;
}

void Recorder::sweep_externals() {
  for (auto it = externals_.begin(); it != externals_.end();) {
    if (it->second.storage.expired()) {
      mark("free", it->second.id);
      it = externals_.erase(it);
    } else {
      ++it;
    }
  }
}

void Recorder::expose(const Storage* storage, c10::StorageImpl* impl) {
  if (storage->value->external != nullptr) {
    mark("expose", external(impl));
  } else {
    mark("expose", storage);
  }
}

void Recorder::unseen_write(const Storage* storage, c10::StorageImpl* impl) {
  if (storage != nullptr) {
    mark("unseen_write", storage);
    return;
  }
  const auto found = externals_.find(impl);
  if (found == externals_.end()) return;
  mark("unseen_write", found->second.id);
  mark("free", found->second.id);  // it is got to know anew
  externals_.erase(found);
}

void Recorder::allocated(const Storage* storage, Bytes bytes) {
  ThreadState& thread = thread_state();
  if (thread.paused > 0) return;
  if (!thread.operators.empty()) {
    Pending& pending = thread.operators.back();
    pending.own[storage] = pending.memory.size();
    pending.memory.push_back({storage, bytes, 0});
  } else if (running().depth == 0) {
    root(define(storage), bytes);
  }
}

void Recorder::died(const Storage* storage) {
  std::vector<Pending>& operators = thread_state().operators;
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
    mark("free", found->second);
  } else {
    operators.back().deaths.push_back(found->second);  // after the operator that uses it
  }
  ids_.erase(found);
}

void Recorder::begin(const Call& call) {
  Pending& pending = thread_state().operators.emplace_back();
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
    root(id, tensor.storage->bytes - header_bytes_);
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
  std::vector<Pending>& operators = thread_state().operators;
  if (operators.empty()) return;
  const Pending pending = std::move(operators.back());
  operators.pop_back();
  for (const int64_t id : pending.deaths) mark("free", id);
}

void Recorder::commit(const Call& call, Cost cost, double flops, bool replayable) {
  std::vector<Pending>& operators = thread_state().operators;
  if (operators.empty()) return;
  const Pending pending = std::move(operators.back());
  operators.pop_back();

  lines_ += "{\"op\":";
  append_quoted(lines_, call.info->name);
  lines_ += ",\"cost_ns\":";
  append(lines_, static_cast<int64_t>(cost));
  if (flops > 0) {
    lines_ += ",\"flops\":";
    append(lines_, static_cast<int64_t>(flops));
  }
  lines_ += ",\"moved_bytes\":";
  append(lines_, static_cast<int64_t>(call.operands.bytes_moved));
  if (call.operands.half) lines_ += ",\"half\":true";
  const bool optimizing = in_step_ && !at::GradMode::is_enabled();
  if (!optimizing && torch::autograd::get_current_node() == nullptr) {
    lines_ += ",\"backward\":false";
  }
  append_list(lines_, "inputs", pending.inputs);

  std::unordered_map<const Storage*, size_t> outputs;
  if (!call.fresh.empty()) {
    lines_ += ",\"outputs\":[";
    for (const Storage* storage : call.fresh) {
      if (!outputs.empty()) lines_ += ',';
      lines_ += '[';
      append(lines_, define(storage));
      lines_ += ',';
      append(lines_, storage->bytes - header_bytes_);
      lines_ += ']';
      outputs.emplace(storage, outputs.size());
    }
    lines_ += ']';
  }
  append_list(lines_, "writes", pending.writes);
  append_list(lines_, "overwrites", pending.overwrites);

  // Temporaries are numbered by themselves. What is neither freed nor a result stays for others.
  std::string memory;
  auto step = [&](const char* kind) {
    memory += memory.empty() ? "[\"" : ",[\"";
    memory += kind;
    memory += "\",";
  };
  std::vector<int64_t> numbers(pending.memory.size(), -1);
  int64_t num_temporaries = 0;
  size_t num_outputs = 0;
  bool plain = true;  // the outputs in their order
  for (size_t i = 0; i < pending.memory.size(); ++i) {
    const Pending::Step& entry = pending.memory[i];
    const auto output = outputs.find(entry.storage);
    if (entry.storage != nullptr && !entry.gone && output != outputs.end()) {
      plain &= output->second == num_outputs++;
      step("output");
      append(memory, static_cast<int64_t>(output->second));
    } else if (options_.estimate_temporaries && (entry.gone || entry.storage == nullptr)) {
      continue;
    } else if (entry.storage == nullptr) {
      step("free");
      append(memory, numbers[entry.freed]);
    } else if (entry.gone) {
      plain = false;
      numbers[i] = num_temporaries++;
      step("temporary");
      append(memory, entry.bytes);
    } else {
      plain = false;
      step("root");
      append(memory, define(entry.storage));
      memory += ',';
      append(memory, entry.bytes);
    }
    memory += ']';
  }
  if (options_.estimate_temporaries) {
    if (const Bytes bytes = estimated_temporary(call); bytes > 0) {
      plain = false;
      step("temporary");
      append(memory, bytes);
      memory += ']';
    }
  }
  if (!plain) lines_ += ",\"memory\":[" + memory + "]";
  if (call.side == Side::kLeft) lines_ += ",\"side\":\"left\"";
  if (!replayable) lines_ += ",\"replayable\":false";
  if (call.operation.undefined) lines_ += ",\"undefined\":true";
  if (pending.make_roots.size() == pending.writes.size() + pending.overwrites.size()) {
    if (!pending.make_roots.empty()) lines_ += ",\"make_roots\":true";
  } else {
    append_list(lines_, "make_roots", pending.make_roots);
  }
  const bool usual = !call.fresh.empty() && replayable;
  if (!pending.writes.empty() && pending.keep_old != usual) {
    lines_ += pending.keep_old ? ",\"keep_old\":true" : ",\"keep_old\":false";
  }
  if (options_.source_lines && call.source > 0) {
    if (call.source >= sources_.size()) sources_ = sources();
    const SourceLine& line = sources_[call.source];
    lines_ += ",\"source\":";
    append_quoted(
        lines_, line.file + ":" + std::to_string(line.line) + (line.backward ? " (backward)" : ""));
  }
  lines_ += "}\n";
  for (const int64_t id : pending.deaths) mark("free", id);
}

void Recorder::begin_step() {
  if (std::exchange(in_step_, true)) return;  // the last one failed
  lines_ += "{\"step\":\"begin\"}\n";
}

void Recorder::end_step(bool boundary) {
  if (!std::exchange(in_step_, false)) lines_ += "{\"step\":\"begin\"}\n";
  lines_ += boundary ? "{\"step\":\"end\"}\n" : "{\"step\":\"end_inside\"}\n";
  sweep_externals();
}

}  // namespace coop
