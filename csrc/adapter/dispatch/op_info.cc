#include "adapter/dispatch/op_info.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "adapter/dispatch/separable.h"
#include "adapter/dispatch/tuple_out.h"

namespace coop {

namespace {

// Rule 7. Operators that write arguments their schema does not mark as written, or that mark them
// although they only write when training. The statistics are written from the batch alone.
struct StatisticsWriter {
  std::vector<int> written;
  int training;  // the argument that says so; -1: always
};
const std::unordered_map<std::string, StatisticsWriter>& statistics_writers() {
  static const auto* table = new std::unordered_map<std::string, StatisticsWriter>{
      {"aten::native_batch_norm", {{3, 4}, 5}},
      {"aten::cudnn_batch_norm", {{3, 4}, 5}},
      {"aten::miopen_batch_norm", {{3, 4}, 5}},
      {"aten::_native_batch_norm_legit", {{3, 4}, 5}},
      {"aten::_batch_norm_with_update", {{3, 4}, -1}},
      {"aten::batch_norm_update_stats", {{1, 2}, -1}},
      {"aten::batch_norm_gather_stats", {{3, 4}, -1}},
      {"aten::batch_norm_gather_stats_with_counts", {{3, 4}, -1}},
  };
  return *table;
}

// Written in full, never read: the old content need not come back for a replay.
const std::unordered_set<std::string>& overwriters() {
  static const auto* table = new std::unordered_set<std::string>{
      "aten::zero_",      "aten::fill_",       "aten::copy_",      "aten::normal_",
      "aten::uniform_",   "aten::random_",     "aten::bernoulli_", "aten::exponential_",
      "aten::geometric_", "aten::log_normal_", "aten::cauchy_",
  };
  return *table;
}

const std::unordered_map<std::string, FlopFormula>& flop_formulas() {
  static const auto* table = new std::unordered_map<std::string, FlopFormula>{
      {"aten::mm", FlopFormula::kMm},
      {"aten::addmm", FlopFormula::kAddmm},
      {"aten::bmm", FlopFormula::kBmm},
      {"aten::baddbmm", FlopFormula::kBaddbmm},
      {"aten::convolution", FlopFormula::kConvolution},
      {"aten::_convolution", FlopFormula::kConvolution},
      {"aten::convolution_overrideable", FlopFormula::kConvolution},
      {"aten::mkldnn_convolution", FlopFormula::kConvolution},
      {"aten::cudnn_convolution", FlopFormula::kConvolution},
      {"aten::convolution_backward", FlopFormula::kConvolutionBackward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", FlopFormula::kAttention},
      {"aten::_scaled_dot_product_flash_attention", FlopFormula::kAttention},
      {"aten::_scaled_dot_product_efficient_attention", FlopFormula::kAttention},
      {"aten::_scaled_dot_product_cudnn_attention", FlopFormula::kAttention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       FlopFormula::kAttentionBackward},
      {"aten::_scaled_dot_product_flash_attention_backward", FlopFormula::kAttentionBackward},
      {"aten::_scaled_dot_product_efficient_attention_backward", FlopFormula::kAttentionBackward},
      {"aten::_scaled_dot_product_cudnn_attention_backward", FlopFormula::kAttentionBackward},
      {"aten::_cudnn_rnn", FlopFormula::kRnn},
      {"aten::_cudnn_rnn_backward", FlopFormula::kRnn},
      {"aten::mkldnn_rnn_layer", FlopFormula::kRnn},
      {"aten::mkldnn_rnn_layer_backward", FlopFormula::kRnn},
  };
  return *table;
}

// Among the operators that training runs most often, those without a product of matrices inside.
const std::unordered_set<std::string>& productless() {
  static const auto* table = new std::unordered_set<std::string>{
      "aten::_log_softmax",
      "aten::_log_softmax_backward_data",
      "aten::_softmax",
      "aten::_softmax_backward_data",
      "aten::_to_copy",
      "aten::cat",
      "aten::clone",
      "aten::copy_",
      "aten::cudnn_batch_norm",
      "aten::cudnn_batch_norm_backward",
      "aten::detach",
      "aten::embedding",
      "aten::embedding_dense_backward",
      "aten::empty",
      "aten::fill_",
      "aten::max_pool2d_with_indices",
      "aten::max_pool2d_with_indices_backward",
      "aten::mean",
      "aten::native_batch_norm",
      "aten::native_batch_norm_backward",
      "aten::native_dropout",
      "aten::native_dropout_backward",
      "aten::native_layer_norm",
      "aten::native_layer_norm_backward",
      "aten::stack",
      "aten::sum",
      "aten::threshold_backward",
      "aten::zero_",
  };
  return *table;
}

// Only geometry changes: no bytes are read or written.
const std::unordered_set<std::string>& geometry_changers() {
  static const auto* table = new std::unordered_set<std::string>{
      "aten::set_",           "aten::as_strided_",  "aten::t_",
      "aten::transpose_",     "aten::squeeze_",     "aten::unsqueeze_",
      "aten::detach_",        "aten::swapaxes_",    "aten::swapdims_",
      "aten::requires_grad_", "aten::rename_",      "aten::is_pinned",
      "aten::record_stream",  "aten::is_same_size", "aten::_has_same_storage_numel",
      "aten::_unsafe_view",
  };
  return *table;
}

const std::unordered_map<std::string, const char*>& refusals() {
  static const auto* table = new std::unordered_map<std::string, const char*>{
      {"aten::resize_", "resize_ leaves bytes undefined"},
      {"aten::resize_as_", "resize_as_ leaves bytes undefined"},
      {"aten::_cudnn_init_dropout_state", "cuDNN's dropout state cannot be captured"},
      {"aten::_resize_output_", "_resize_output_ leaves bytes undefined"},
      {"aten::_pin_memory", "page-locked memory is not the arena's"},
      {"aten::linalg_lstsq", "its results differ from run to run"},
      {"aten::_lazy_clone", "copy-on-write storages are not tracked"},
  };
  return *table;
}

// See OpInfo::draws_inside.
const std::unordered_set<std::string>& drawers() {
  static const auto* table = new std::unordered_set<std::string>{
      "aten::native_dropout", "aten::rand",  "aten::rand_like",  "aten::randint",
      "aten::randint_like",   "aten::randn", "aten::randn_like", "aten::randperm",
  };
  return *table;
}

// Their results are any memory (see Value::undefined), and what they are given as `out` stays as it
// is.
const std::unordered_set<std::string>& empty_makers() {
  static const auto* table = new std::unordered_set<std::string>{
      "aten::empty",
      "aten::empty_like",
      "aten::new_empty",
      "aten::empty_strided",
      "aten::new_empty_strided",
      "aten::empty_permuted",
      "aten::resize",
      "aten::resize_as",
      "aten::_resize_output",
      "aten::_empty_affine_quantized",
      "aten::_empty_per_channel_affine_quantized",
      "aten::empty_quantized",
      "prims::empty",
      "prims::empty_strided",
      "prims::empty_permuted",
  };
  return *table;
}

// Their kernels are made of operators that come by themselves: copies, and c10d's collectives.
bool is_made_of_others(const std::string& base) {
  const std::string space = base.substr(0, base.find("::"));
  return space == "_c10d_functional" || space == "_c10d_functional_autograd" ||
         space == "c10d_functional" || space == "_dtensor" || space == "fsdp";
}

// It talks to other processes: run again by one of them alone, it would wait for ever (Rule 19).
bool is_collective(const c10::FunctionSchema& schema) {
  auto is_c10d = [](const c10::Argument& argument) {
    return argument.type()->str().find(".classes.c10d.") != std::string::npos;
  };
  auto names_group = [&](const c10::Argument& argument) {
    if (is_c10d(argument)) return true;
    const std::string type = argument.type()->str();
    const std::string& name = argument.name();
    return (type == "str" || type == "str?" || type == "Any") &&
           (name == "group_name" || name == "process_group" || name == "group");
  };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), names_group) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), is_c10d);
}

std::unordered_set<std::string>& allowed() {
  static auto* names = new std::unordered_set<std::string>();
  return *names;
}

ArgumentKind kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::OptionalType:
      return kind_of(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: {
      const ArgumentKind element = kind_of(type->castRaw<c10::ListType>()->getElementType());
      return element == ArgumentKind::kTensor  ? ArgumentKind::kTensorList
             : element == ArgumentKind::kOther ? ArgumentKind::kOther
                                               : ArgumentKind::kOpaque;
    }
    case c10::TypeKind::DictType:
    case c10::TypeKind::TupleType:
    case c10::TypeKind::ClassType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::PyObjectType:
    case c10::TypeKind::StorageType:
      return ArgumentKind::kOpaque;
    default:
      return ArgumentKind::kOther;
  }
}

void make_info(const c10::OperatorHandle& op, OpInfo& info) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& base = schema.name();
  info.name = base + (schema.overload_name().empty() ? "" : "." + schema.overload_name());

  const auto& arguments = schema.arguments();
  info.writes.resize(arguments.size());
  bool opaque = false;
  bool only_results = true;  // are written
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    info.arguments.push_back(kind_of(argument.type()));
    opaque |= info.arguments.back() == ArgumentKind::kOpaque;
    info.takes_storages |= argument.type()->kind() == c10::TypeKind::StorageType;
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      info.writes[i] = true;
      only_results &= argument.is_out();
    }
    if (argument.name() == "generator") info.generator_argument = static_cast<int>(i);
    if (argument.name() == "grad_scale") info.scale_argument = static_cast<int>(i);
  }
  info.num_results = schema.returns().size();
  if (kTupleOutDangles) info.maker = find_maker(op);
  bool all_views = !schema.returns().empty();
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() == nullptr) {
      all_views = false;
      info.has_fresh_outputs |= kind_of(result.type()) != ArgumentKind::kOther;
    }
  }
  const auto statistics = statistics_writers().find(base);
  const bool out = !arguments.empty() && arguments.back().is_out();
  if (statistics != statistics_writers().end()) {
    // Results that are given besides are always written: nothing is left to replay then.
    if (!out) info.writes.assign(arguments.size(), false);
    for (const int i : statistics->second.written) info.writes[i] = true;
    info.writes_statistics = !out;
    if (!out) info.training_argument = statistics->second.training;
  }
  const bool trusted = base.rfind("aten::", 0) == 0 || base.rfind("prims::", 0) == 0;
  const bool collective = !trusted && is_collective(schema);
  const bool made_of_others = is_made_of_others(base);
  const Collective* known = trusted ? nullptr : find_collective(base);
  if (known != nullptr && (info.arguments.empty() || info.arguments[0] != ArgumentKind::kOther)) {
    info.collective = known;
    info.writes.assign(arguments.size(), false);
    if (known->writes_first) info.writes[0] = true;
  }
  info.unknown = !trusted && !made_of_others && info.collective == nullptr &&
                 (collective || allowed().count(base) == 0);
  if (info.unknown) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      info.writes[i] = info.arguments[i] != ArgumentKind::kOther;
    }
  }
  for (const bool write : info.writes) info.has_writes |= write;
  info.overwrites = overwriters().count(base) > 0 || (out && only_results);

  // A composite operator that reaches us (inference mode) is made of operators that do too.
  const bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                         !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  info.passes_through = composite || made_of_others || (all_views && !info.has_writes) ||
                        geometry_changers().count(base) > 0;

  info.takes_storages |= base == "aten::set_";
  info.separable = is_separable(schema);
  info.copies = base == "aten::clone" || base == "aten::_to_copy";
  info.shares_memory = base == "aten::_lazy_clone";
  info.undefined = !out && empty_makers().count(base) > 0;
  info.seeded = op.hasTag(at::Tag::nondeterministic_seeded);
  info.draws_inside = info.generator_argument < 0 && drawers().count(base) > 0;
  const auto formula = flop_formulas().find(base);
  if (formula != flop_formulas().end()) info.flops = formula->second;
  info.expensive = info.flops != FlopFormula::kNone;
  info.products = !op.hasTag(at::Tag::pointwise) && productless().count(base) == 0;
  if (base == "aten::_cudnn_rnn" || base == "aten::_cudnn_rnn_backward") {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == "dropout") info.dropout_argument = static_cast<int>(i);
    }
  }
  info.accumulates = base == "aten::detach" || base == "aten::clone" || base == "aten::add" ||
                     base == "aten::add_" || base == "aten::copy_";

  info.builtin = trusted;
  const auto refusal = refusals().find(base);
  if (refusal != refusals().end()) {
    info.refusal = refusal->second;
  } else if (statistics != statistics_writers().end() && out) {
    info.refusal = "it writes statistics besides the results it is given";
  } else if (out && empty_makers().count(base) > 0) {
    info.refusal = "it leaves the bytes of its result as they were";
  } else if (info.unknown || info.collective != nullptr) {
    info.refusal = collective || info.collective != nullptr
                       ? "collectives are never replayed"
                       : "custom operators are not replayed unless allowed";
    info.warns = info.unknown && !collective;
  } else if (opaque) {
    info.refusal = "an argument is neither a tensor nor plain data";
  }
}

struct Table {
  std::mutex mutex;
  std::unordered_map<c10::OperatorHandle, const OpInfo*> by_handle;
  std::deque<OpInfo> infos;
  // Bumped when what was worked out before no longer holds.
  std::atomic<int64_t> generation{0};
};

Table& table() {
  static auto* instance = new Table();
  return *instance;
}

// What is known of an operator is found by the address of its definition, which another one may get
// when a library is gone. Called under the dispatcher's lock.
class DeregistrationListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    Table& shared = table();
    const std::lock_guard<std::mutex> guard(shared.mutex);
    const auto found = shared.by_handle.find(op);
    if (found == shared.by_handle.end()) return;
    if (found->second != nullptr) found->second->deregistered.store(true);
    shared.by_handle.erase(found);
    shared.generation.fetch_add(1, std::memory_order_release);
  }
};

// For ever: there is no telling what is unloaded first.
[[maybe_unused]] const auto* const g_listening =
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
        std::make_unique<DeregistrationListener>()));

}  // namespace

const OpInfo& op_info(const c10::OperatorHandle& op) {
  // A direct-mapped cache per thread: no lock and no search on the way of an operator. The hash of
  // a handle is the address of its definition, so equal hashes are equal operators.
  struct Entry {
    size_t hash = 0;
    int64_t generation = -1;
    const OpInfo* info = nullptr;
  };
  static thread_local std::array<Entry, 1024> cache;
  Table& shared = table();
  const int64_t generation = shared.generation.load(std::memory_order_acquire);
  const size_t hash = std::hash<c10::OperatorHandle>()(op);
  Entry& cached = cache[(hash >> 4) % cache.size()];
  if (cached.hash == hash && cached.generation == generation) return *cached.info;
  const std::lock_guard<std::mutex> guard(shared.mutex);
  const OpInfo*& entry = shared.by_handle[op];
  if (entry == nullptr) {
    const auto id = static_cast<int32_t>(shared.infos.size());
    OpInfo& info = shared.infos.emplace_back();
    make_info(op, info);
    info.id = id;
    entry = &info;
  }
  cached = {hash, generation, entry};
  return *entry;
}

const OpInfo& op_info(int32_t id) {
  const std::lock_guard<std::mutex> guard(table().mutex);
  return table().infos.at(id);
}

int32_t num_op_infos() {
  const std::lock_guard<std::mutex> guard(table().mutex);
  return static_cast<int32_t>(table().infos.size());
}

const OpInfo& add_op_info(c10::function_ref<void(OpInfo&)> fill) {
  const std::lock_guard<std::mutex> guard(table().mutex);
  const auto id = static_cast<int32_t>(table().infos.size());
  OpInfo& info = table().infos.emplace_back();
  fill(info);
  info.id = id;
  return info;
}

void lock_op_infos() { table().mutex.lock(); }
void unlock_op_infos() { table().mutex.unlock(); }

bool allow_replay(const std::string& name) {
  if (is_made_of_others(name)) return false;
  for (const c10::OperatorName& known : c10::Dispatcher::singleton().getAllOpNames()) {
    if (known.name != name) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(known);
    if (op && is_collective(op->schema())) return false;
  }
  const std::lock_guard<std::mutex> guard(table().mutex);
  allowed().insert(name);
  table().by_handle.clear();
  table().generation.fetch_add(1, std::memory_order_release);
  return true;
}

}  // namespace coop
