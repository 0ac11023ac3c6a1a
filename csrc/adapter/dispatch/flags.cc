#include "adapter/dispatch/flags.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <list>
#include <mutex>
#include <vector>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace coop {

namespace {

// --- the members of torch's Context

struct Setting {
  int64_t (*get)(at::Context&);
  void (*set)(at::Context&, int64_t);
};

template <typename T>
void assign(at::Context& context, void (at::Context::*set)(T), int64_t value) {
  (context.*set)(static_cast<T>(value));
}

template <auto Get, auto Set>
constexpr Setting setting() {
  return {[](at::Context& context) { return static_cast<int64_t>((context.*Get)()); },
          [](at::Context& context, int64_t value) { assign(context, Set, value); }};
}

// How sums in half precision may be rounded.
template <auto Get, auto Set>
constexpr Setting reduction() {
  using Option = at::CuBLASReductionOption;
  return {[](at::Context& context) { return static_cast<int64_t>((context.*Get)()); },
          [](at::Context& context, int64_t value) {
            const auto option = static_cast<Option>(value);
            (context.*Set)(option == Option::AllowReducedPrecisionWithSplitK,
                           option != Option::DisallowReducedPrecisionDisallowSplitK);
          }};
}

// Bit 0 is whether, bit 1 whether only with a warning.
constexpr Setting kDeterministic{[](at::Context& context) -> int64_t {
                                   return (context.deterministicAlgorithms() ? 1 : 0) +
                                          (context.deterministicAlgorithmsWarnOnly() ? 2 : 0);
                                 },
                                 [](at::Context& context, int64_t value) {
                                   context.setDeterministicAlgorithms((value & 1) != 0,
                                                                      (value & 2) != 0);
                                 }};

// Which attention is tried first: a digit for each place.
constexpr Setting kAttentionOrder{[](at::Context& context) {
                                    int64_t digits = 0;
                                    for (const auto backend : context.sDPPriorityOrder()) {
                                      digits = 10 * digits + static_cast<int64_t>(backend);
                                    }
                                    return digits;
                                  },
                                  [](at::Context& context, int64_t digits) {
                                    std::vector<int64_t> order(at::num_sdp_backends);
                                    for (size_t i = order.size(); i-- > 0; digits /= 10)
                                      order[i] = digits % 10;
                                    context.setSDPPriorityOrder(order);
                                  }};

constexpr Setting kCarveout{
    [](at::Context& context) -> int64_t { return context._SMCarveout_EXPERIMENTAL().value_or(-1); },
    [](at::Context& context, int64_t value) {
      context._setSMCarveout_EXPERIMENTAL(
          value < 0 ? std::nullopt : std::optional<int32_t>(static_cast<int32_t>(value)));
    }};

// Asking for it settles what the default is, which takes a GPU's library.
constexpr Setting kBlas{
    [](at::Context& context) -> int64_t {
      return at::Context::hasCUDA() ? static_cast<int64_t>(context.blasPreferredBackend()) : 0;
    },
    [](at::Context& context, int64_t value) {
      context.setBlasPreferredBackend(static_cast<at::BlasBackend>(value));
    }};

// Some settings not every torch has.
constexpr Setting kAbsent{[](at::Context&) -> int64_t { return 0; }, [](at::Context&, int64_t) {}};
template <typename Context = at::Context>
constexpr Setting depthwise_kernel() {
  if constexpr (requires(Context& context) { context.cudnnDepthwiseKernel(); }) {
    return setting<&Context::cudnnDepthwiseKernel, &Context::setCuDNNDepthwiseKernel>();
  }
  return kAbsent;
}
template <typename Context = at::Context>
constexpr Setting third_flash_attention() {
  if constexpr (requires(Context& context) { context.userEnabledFA3SDP(); }) {
    return setting<&Context::userEnabledFA3SDP, &Context::setSDPUseFA3>();
  }
  return kAbsent;
}

using C = at::Context;
constexpr std::array kSettings{
    kDeterministic,
    setting<&C::deterministicFillUninitializedMemory,
            &C::setDeterministicFillUninitializedMemory>(),
    // convolutions, RNNs
    setting<&C::userEnabledCuDNN, &C::setUserEnabledCuDNN>(),
    setting<&C::benchmarkCuDNN, &C::setBenchmarkCuDNN>(),
    setting<&C::deterministicCuDNN, &C::setDeterministicCuDNN>(),
    depthwise_kernel(),
    setting<&C::userEnabledMkldnn, &C::setUserEnabledMkldnn>(),
    setting<&C::deterministicMkldnn, &C::setDeterministicMkldnn>(),
    setting<&C::userEnabledNNPACK, &C::setUserEnabledNNPACK>(),
    // products of matrices
    reduction<&C::allowFP16ReductionCuBLAS, &C::setAllowFP16ReductionCuBLAS>(),
    reduction<&C::allowBF16ReductionCuBLAS, &C::setAllowBF16ReductionCuBLAS>(),
    setting<&C::allowFP16AccumulationCuBLAS, &C::setAllowFP16AccumulationCuBLAS>(),
    setting<&C::allowFP16ReductionCPU, &C::setAllowFP16ReductionCPU>(),
    kCarveout,
    kBlas,
    setting<&C::linalgPreferredBackend, &C::setLinalgPreferredBackend>(),
    // attention, where one operator is a whole layer
    kAttentionOrder,
    setting<&C::userEnabledFlashSDP, &C::setSDPUseFlash>(),
    third_flash_attention(),
    setting<&C::userEnabledMemEfficientSDP, &C::setSDPUseMemEfficient>(),
    setting<&C::userEnabledMathSDP, &C::setSDPUseMath>(),
    setting<&C::userEnabledCuDNNSDP, &C::setSDPUseCuDNN>(),
    setting<&C::userEnabledOverrideableSDP, &C::setSDPUseOverrideable>(),
    setting<&C::allowFP16BF16ReductionMathSDP, &C::setAllowFP16BF16ReductionMathSDP>(),
};

// --- the others

constexpr std::array kProducts{at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN};

at::Float32Backend backend_of(const Flags& flags) {
  return flags.cuda ? at::Float32Backend::CUDA : at::Float32Backend::MKLDNN;
}

// Torch can set it, for a thread, and not be asked.
bool flushes_denormal() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000;
  return (_mm_getcsr() & kFlushToZero) != 0;
#else
  return false;
#endif
}

}  // namespace

struct Settings {
  std::array<int64_t, kSettings.size()> values{};

  bool operator==(const Settings&) const = default;
};

namespace {

const Settings* current_settings() {
  static std::mutex mutex;
  static auto* const known = new std::list<Settings>();  // a program has few
  Settings settings;
  for (size_t i = 0; i < kSettings.size(); ++i) {
    settings.values[i] = kSettings[i].get(at::globalContext());
  }
  const std::lock_guard<std::mutex> guard(mutex);
  for (const Settings& each : *known) {
    if (each == settings) return &each;
  }
  return &known->emplace_back(settings);
}

void apply(const Flags& from, const Flags& to) {
  at::Context& context = at::globalContext();
  c10::GradMode::set_enabled(to.grad_mode);
  if (from.settings != to.settings) {
    for (size_t i = 0; i < kSettings.size(); ++i) {
      const int64_t value = to.settings->values[i];
      if (from.settings->values[i] != value) kSettings[i].set(context, value);
    }
  }
  for (size_t i = 0; i < kProducts.size(); ++i) {
    if (from.precisions[i] == to.precisions[i]) continue;
    context.setFloat32Precision(backend_of(to), kProducts[i],
                                static_cast<at::Float32Precision>(to.precisions[i]));
  }
  if (from.default_dtype != to.default_dtype) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_dtype));
  }
  if (from.autocast_dtype != to.autocast_dtype) {
    at::autocast::set_autocast_dtype(at::kCPU, to.autocast_dtype);
  }
  if (from.flush_denormal != to.flush_denormal) context.setFlushDenormal(to.flush_denormal);
  if (from.num_threads != to.num_threads) at::set_num_threads(to.num_threads);
}

}  // namespace

Flags FlagsReader::current(bool products, bool cuda) {
  const at::Context& context = at::globalContext();
  if (std::memcmp(seen_.data(), &context, sizeof(context)) != 0) {
    // First, so that what another thread changes meanwhile is seen the next time.
    std::memcpy(seen_.data(), static_cast<const void*>(&context), sizeof(context));
    settings_ = current_settings();
  }
  Flags flags;
  flags.settings = settings_;
  flags.grad_mode = c10::GradMode::is_enabled();
  flags.products = products;
  flags.cuda = cuda;
  if (products) {
    // What kernels ask for. (Asking for one of all devices is an error once a program has set them
    // one by one.) They lie outside of the object.
    for (size_t i = 0; i < kProducts.size(); ++i) {
      flags.precisions[i] =
          static_cast<uint8_t>(context.float32Precision(backend_of(flags), kProducts[i]));
    }
  }
  flags.default_dtype = c10::get_default_dtype_as_scalartype();
  if (!cuda) {
    flags.autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
    flags.flush_denormal = flushes_denormal();
    flags.num_threads = at::get_num_threads();
  }
  return flags;
}

FlagsGuard::FlagsGuard(const Flags& live, const Flags& replayed)
    : live_(live), replayed_(replayed), changed_(!(live_ == replayed_)) {
  if (changed_) apply(live_, replayed_);
}

FlagsGuard::~FlagsGuard() {
  if (changed_) apply(replayed_, live_);
}

}  // namespace coop
