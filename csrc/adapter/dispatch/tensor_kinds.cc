#include "adapter/dispatch/tensor_kinds.h"

#include <ATen/ATen.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <array>
#include <string_view>

namespace coop {

namespace {

enum class Verdict { kReplayed, kHeld, kFake };

struct Row {
  std::string_view key;
  Verdict verdict;
  std::string_view state;  // besides its storage
};

// By name: torch's versions do not have all of them.
constexpr std::array kFunctionalities = {
    Row{"Dense", Verdict::kReplayed, "nothing"},
    Row{"ADInplaceOrView", Verdict::kReplayed, "nothing; tensors of inference mode lack it"},
    Row{"AutogradOther", Verdict::kReplayed, "autograd's, which is above us"},
    Row{"AutogradFunctionality", Verdict::kReplayed, "autograd's, which is above us"},
    Row{"Conjugate", Verdict::kReplayed, "a bit, which is the key itself"},
    Row{"Negative", Verdict::kReplayed, "a bit, which is the key itself"},
    Row{"AutocastCPU", Verdict::kReplayed, "nothing"},
    Row{"AutocastCUDA", Verdict::kReplayed, "nothing"},
    Row{"AutocastMPS", Verdict::kReplayed, "nothing"},
    Row{"AutocastMTIA", Verdict::kReplayed, "nothing"},
    Row{"AutocastMAIA", Verdict::kReplayed, "nothing"},
    Row{"AutocastXPU", Verdict::kReplayed, "nothing"},
    Row{"AutocastIPU", Verdict::kReplayed, "nothing"},
    Row{"AutocastHPU", Verdict::kReplayed, "nothing"},
    Row{"AutocastXLA", Verdict::kReplayed, "nothing"},
    Row{"AutocastPrivateUse1", Verdict::kReplayed, "nothing"},

    Row{"Quantized", Verdict::kHeld, "a quantizer, with tensors of its own where it has channels"},
    Row{"Sparse", Verdict::kHeld, "indices and values"},
    Row{"SparseCsr", Verdict::kHeld, "two indices and values"},
    Row{"NestedTensor", Verdict::kHeld, "sizes, strides and offsets of its parts"},
    Row{"AutogradNestedTensor", Verdict::kHeld, "comes with NestedTensor"},
    Row{"MkldnnCPU", Verdict::kHeld, "oneDNN's memory and layout"},
    Row{"ZeroTensor", Verdict::kHeld, "no memory: all of it is zero"},
    Row{"Named", Verdict::kHeld, "names of its dimensions"},
    Row{"Functionalize", Verdict::kHeld, "another tensor, and writes to it that wait"},
    Row{"FuncTorchBatched", Verdict::kHeld, "another tensor"},
    Row{"BatchedNestedTensor", Verdict::kHeld, "another tensor"},
    Row{"Batched", Verdict::kHeld, "another tensor"},
    Row{"FuncTorchGradWrapper", Verdict::kHeld, "another tensor"},
    Row{"TESTING_ONLY_GenericWrapper", Verdict::kHeld, "another tensor"},
    Row{"FPGA", Verdict::kHeld, "a device's"},
    Row{"Vulkan", Verdict::kHeld, "a device's"},
    Row{"Metal", Verdict::kHeld, "a device's"},
    Row{"CustomRNGKeyId", Verdict::kHeld, "a generator's"},
    Row{"Python", Verdict::kFake, "an object of Python's"},
    Row{"PythonTLSSnapshot", Verdict::kFake, "comes with Python"},

    // No tensor has these: they are modes of a thread.
    Row{"BackendSelect", Verdict::kHeld, "none: a mode"},
    Row{"Fake", Verdict::kHeld, "none: our own key"},
    Row{"FuncTorchDynamicLayerBackMode", Verdict::kHeld, "none: a mode"},
    Row{"FuncTorchDynamicLayerFrontMode", Verdict::kHeld, "none: a mode"},
    Row{"FuncTorchVmapMode", Verdict::kHeld, "none: a mode"},
    Row{"VmapMode", Verdict::kHeld, "none: a mode"},
    Row{"Tracer", Verdict::kHeld, "none: a mode"},
    Row{"DeferredInit", Verdict::kHeld, "none: a mode"},
    Row{"TESTING_ONLY_GenericMode", Verdict::kHeld, "none: a mode"},
    Row{"PreDispatch", Verdict::kHeld, "none: a mode"},
    Row{"PythonDispatcher", Verdict::kHeld, "none: a mode"},
};

constexpr std::array kBackends = {
    Row{"CPUBit", Verdict::kReplayed, "nothing"},
    Row{"CUDABit", Verdict::kReplayed, "nothing"},
    Row{"MetaBit", Verdict::kReplayed, "nothing: it has no bytes"},
    Row{"HIPBit", Verdict::kHeld, "a device's"},
    Row{"XLABit", Verdict::kHeld, "a device's"},
    Row{"MPSBit", Verdict::kHeld, "a device's"},
    Row{"IPUBit", Verdict::kHeld, "a device's"},
    Row{"XPUBit", Verdict::kHeld, "a device's"},
    Row{"HPUBit", Verdict::kHeld, "a device's"},
    Row{"VEBit", Verdict::kHeld, "a device's"},
    Row{"LazyBit", Verdict::kHeld, "a device's"},
    Row{"MTIA", Verdict::kHeld, "a device's"},  // torch's names of these two have no "Bit"
    Row{"MAIA", Verdict::kHeld, "a device's"},
    Row{"PrivateUse1Bit", Verdict::kHeld, "a device's"},
    Row{"PrivateUse2Bit", Verdict::kHeld, "a device's"},
    Row{"PrivateUse3Bit", Verdict::kHeld, "a device's"},
};

template <typename Table>
const Row* find(const Table& table, std::string_view key) {
  for (const Row& row : table) {
    if (row.key == key) return &row;
  }
  return nullptr;
}

// f(the set of that key alone, its row or null, its name, whether it is a backend)
template <typename F>
void for_each_key(F&& f) {
  constexpr auto kEndOfKeys = static_cast<uint16_t>(c10::DispatchKey::EndOfFunctionalityKeys);
  for (uint16_t i = 1; i < kEndOfKeys; ++i) {
    const char* name = c10::toString(static_cast<c10::DispatchKey>(i));
    const uint64_t bit = uint64_t{1} << (c10::num_backends + i - 1);
    f(c10::DispatchKeySet(c10::DispatchKeySet::RAW, bit), find(kFunctionalities, name), name,
      false);
  }
  for (uint8_t i = 1; i <= static_cast<uint8_t>(c10::BackendComponent::EndOfBackendKeys); ++i) {
    const auto backend = static_cast<c10::BackendComponent>(i);
    const char* name = c10::toString(backend);
    f(c10::DispatchKeySet(backend), find(kBackends, name), name, true);
  }
}

UnderstoodKeys understood_keys() {
  UnderstoodKeys result;
  for_each_key([&](c10::DispatchKeySet key, const Row* row, const char*, bool) {
    if (row == nullptr || row->verdict == Verdict::kHeld) return;
    result.fake = result.fake | key;
    if (row->verdict == Verdict::kReplayed) result.replayed = result.replayed | key;
  });
  return result;
}

}  // namespace

const UnderstoodKeys kUnderstood = understood_keys();

void for_each_part(const at::Tensor& tensor, c10::function_ref<void(const at::Tensor&)> visit) {
  if (tensor.layout() == c10::kSparse) {
    visit(tensor._indices());
    visit(tensor._values());
  } else if (at::sparse_csr::is_sparse_compressed(tensor)) {
    const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(tensor);
    visit(compressed);
    visit(plain);
    visit(tensor.values());
  } else if (tensor.is_quantized()) {
    const auto* impl = dynamic_cast<const at::QTensorImpl*>(tensor.unsafeGetTensorImpl());
    if (impl == nullptr) return;
    const at::QuantizerPtr quantizer = const_cast<at::QTensorImpl*>(impl)->quantizer();
    if (const auto* channels =
            dynamic_cast<const at::PerChannelAffineQuantizer*>(quantizer.get())) {
      visit(channels->scales());
      visit(channels->zero_points());
    }
  } else if (const auto* nested =
                 dynamic_cast<const at::native::NestedTensorImpl*>(tensor.unsafeGetTensorImpl())) {
    visit(nested->get_nested_sizes());
    visit(nested->get_nested_strides());
    visit(nested->get_storage_offsets());
  }
}

std::vector<KindRow> tensor_kinds() {
  std::vector<KindRow> rows;
  for_each_key([&](c10::DispatchKeySet key, const Row* row, const char* name, bool backend) {
    const bool replayed = (key.raw_repr() & ~kUnderstood.replayed.raw_repr()) == 0;
    rows.push_back(
        {name, backend, row != nullptr, replayed, row == nullptr ? "" : std::string(row->state)});
  });
  return rows;
}

}  // namespace coop
