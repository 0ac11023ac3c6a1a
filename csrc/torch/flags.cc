#include "torch/flags.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

namespace coop {

namespace {

constexpr std::array kProducts{at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN};

at::Float32Backend backend_of(const Flags& flags) {
  return flags.cuda ? at::Float32Backend::CUDA : at::Float32Backend::MKLDNN;
}

void apply(const Flags& from, const Flags& to) {
  at::Context& context = at::globalContext();
  c10::GradMode::set_enabled(to.grad_mode);
  if (from.deterministic != to.deterministic ||
      from.deterministic_warn_only != to.deterministic_warn_only) {
    context.setDeterministicAlgorithms(to.deterministic, to.deterministic_warn_only);
  }
  if (from.cudnn != to.cudnn) context.setUserEnabledCuDNN(to.cudnn);
  if (from.cudnn_benchmark != to.cudnn_benchmark) context.setBenchmarkCuDNN(to.cudnn_benchmark);
  if (from.cudnn_deterministic != to.cudnn_deterministic) {
    context.setDeterministicCuDNN(to.cudnn_deterministic);
  }
  if (from.mkldnn != to.mkldnn) context.setUserEnabledMkldnn(to.mkldnn);
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
  if (from.num_threads != to.num_threads) at::set_num_threads(to.num_threads);
}

}  // namespace

Flags Flags::current(bool products, bool cuda) {
  const at::Context& context = at::globalContext();
  Flags flags;
  flags.grad_mode = c10::GradMode::is_enabled();
  flags.deterministic = context.deterministicAlgorithms();
  flags.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  flags.cudnn = context.userEnabledCuDNN();
  flags.cudnn_benchmark = context.benchmarkCuDNN();
  flags.cudnn_deterministic = context.deterministicCuDNN();
  flags.mkldnn = context.userEnabledMkldnn();
  flags.products = products;
  flags.cuda = cuda;
  if (products) {
    // What kernels ask for. (Asking for one of all devices is an error once a program has set them
    // one by one.)
    for (size_t i = 0; i < kProducts.size(); ++i) {
      flags.precisions[i] =
          static_cast<uint8_t>(context.float32Precision(backend_of(flags), kProducts[i]));
    }
  }
  flags.default_dtype = c10::get_default_dtype_as_scalartype();
  flags.autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  flags.num_threads = at::get_num_threads();
  return flags;
}

FlagsGuard::FlagsGuard(const Flags& flags)
    : live_(Flags::current(flags.products, flags.cuda)),
      replayed_(flags),
      changed_(!(live_ == flags)) {
  if (changed_) apply(live_, replayed_);
}

FlagsGuard::~FlagsGuard() {
  if (changed_) apply(replayed_, live_);
}

}  // namespace coop
