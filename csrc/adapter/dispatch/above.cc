// Operators that torch decomposes above our dispatch key, and that look at the bytes of their
// tensors there: lengths, indices, offsets; a few compute there.
//
// A key of its own comes before autograd, so before their decomposition. All other operators fall
// through it, which the dispatcher finds out without a call.
#include "adapter/dispatch/above.h"

#include <ATen/Operators.h>
#include <torch/library.h>

#include "adapter/call/invocation.h"
#include "adapter/engine.h"
#include "adapter/errors.h"
#include "adapter/registry.h"

namespace coop {

namespace {

c10::DispatchKeySet below_above(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAboveKey);
}

// Whether an operator of ours runs, which has locked what it uses.
bool is_running() { return running().depth > 0; }

enum class LooksAt {
  kNumbers,  // that decide sizes and places, not the data itself, which may be too much to hold
  kNumbersOfParts,  // also at what the operators make that it calls, such as lengths in another
                    // type
  kEverything,      // it computes with all that it is given, and with what those make
};

template <LooksAt kWhat>
bool is_looked_at(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.layout() == c10::kStrided &&
         (kWhat == LooksAt::kEverything ||
          c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true));
}

void hold(const at::Tensor& tensor, const char* op, Loans* held, bool written = false) {
  Engine* engine = active_engine(tensor.device());
  if (engine == nullptr) return;
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  try {
    if (written) engine->before_unseen_write(impl);
    engine->lend(impl, &held->add(*engine));
  } catch (const OutOfBudget& error) {
    throw_out_of_budget(op, error.replaying, error.shortage);
  }
}

template <LooksAt kWhat>
void run_held(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (is_running()) return op.redispatchBoxed(below_above(keys), stack);
  Loans held;
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const c10::ArrayRef<c10::IValue> given = torch::jit::last(*stack, arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    for_each_tensor(given[i], [&](const at::Tensor& tensor, int32_t) {
      if (!is_looked_at<kWhat>(tensor)) return;
      hold(tensor, op.schema().name().c_str(), &held, written);
    });
  }
  const HoldScope scope(kWhat != LooksAt::kNumbers ? &held : running().hold);
  op.redispatchBoxed(below_above(keys), stack);
}

// Torch's constructors from lists of tensors keep our key out while they look at each.
at::Scalar item(c10::DispatchKeySet keys, const at::Tensor& tensor) {
  Loans held;
  if (!is_running() && c10::impl::tls_is_dispatch_key_excluded(kOurKey) && tensor.has_storage()) {
    hold(tensor, "aten::item", &held);
  }
  return at::_ops::item::redispatch(below_above(keys), tensor);
}

// Torch asks by the address. An arena is never pinned host memory.
bool is_pinned(c10::DispatchKeySet keys, const at::Tensor& tensor,
               std::optional<c10::Device> device) {
  if (tensor.has_storage()) {
    if (Engine* engine = active_engine(tensor.device())) {
      const EngineLock guard(*engine);
      if (engine->storages().find(tensor.storage().unsafeGetStorageImpl()) != nullptr) return false;
    }
  }
  return at::_ops::is_pinned::redispatch(below_above(keys), tensor, device);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  static_assert(kAboveKey == c10::DispatchKey::TESTING_ONLY_GenericMode);
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) {
  for (const char* name :
       {"_pack_padded_sequence", "_pack_padded_sequence_backward", "_pad_packed_sequence",
        "gru.data", "lstm.data", "quantized_gru.data", "quantized_lstm.data", "rnn_relu.data",
        "rnn_tanh.data", "tensor_split.tensor_indices_or_sections"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_held<LooksAt::kNumbers>>());
  }
  for (const char* name :
       {"_validate_sparse_bsc_tensor_args", "_validate_sparse_bsr_tensor_args",
        "_validate_sparse_compressed_tensor_args", "_validate_sparse_coo_tensor_args",
        "_validate_sparse_csc_tensor_args", "_validate_sparse_csr_tensor_args", "ctc_loss.IntList",
        "ctc_loss.Tensor", "sparse_coo_tensor.indices", "sparse_coo_tensor.indices_size"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_held<LooksAt::kNumbersOfParts>>());
  }
  for (const char* name :
       {"choose_qparams_optimized", "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight.out",
        "fbgemm_linear_fp16_weight_fp32_activation",
        "fbgemm_linear_fp16_weight_fp32_activation.out", "fbgemm_linear_int8_weight",
        "fbgemm_linear_int8_weight_fp32_activation", "fbgemm_linear_quantize_weight",
        "fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix",
        "fbgemm_pack_quantized_matrix.KN", "max_pool1d"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_held<LooksAt::kEverything>>());
  }
  m.impl("is_pinned", TORCH_FN(is_pinned));
  m.impl("item", TORCH_FN(item));
}

}  // namespace coop
