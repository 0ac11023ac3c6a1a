#include "torch/flags.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

namespace coop {

namespace {

const char* precision_name(uint8_t precision) {
  switch (static_cast<at::Float32MatmulPrecision>(precision)) {
    case at::Float32MatmulPrecision::HIGHEST:
      return "highest";
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
  }
  return "highest";
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
  if (from.matmul_precision != to.matmul_precision) {
    context.setFloat32MatmulPrecision(precision_name(to.matmul_precision));
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

Flags Flags::current(bool products) {
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
  if (products) flags.matmul_precision = static_cast<uint8_t>(context.float32MatmulPrecision());
  flags.default_dtype = c10::get_default_dtype_as_scalartype();
  flags.autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  flags.num_threads = at::get_num_threads();
  return flags;
}

FlagsGuard::FlagsGuard(const Flags& flags)
    : live_(Flags::current(flags.products)), replayed_(flags), changed_(!(live_ == flags)) {
  if (changed_) apply(live_, replayed_);
}

FlagsGuard::~FlagsGuard() {
  if (changed_) apply(replayed_, live_);
}

}  // namespace coop
