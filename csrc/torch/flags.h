// Global settings that change what an operator computes (Rule 10).
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

namespace coop {

struct Flags {
  bool grad_mode = false;  // some kernels keep less when it is off (oneDNN's RNN)
  bool deterministic = false;
  bool deterministic_warn_only = false;
  bool cudnn = false;
  bool cudnn_benchmark = false;
  bool cudnn_deterministic = false;
  bool mkldnn = false;
  bool products = false;
  bool cuda = false;
  // Of products in single precision (at::Float32Precision): of matrices, convolutions, RNNs.
  std::array<uint8_t, 3> precisions{};
  c10::ScalarType default_dtype = c10::ScalarType::Float;
  c10::ScalarType autocast_dtype = c10::ScalarType::Undefined;
  int32_t num_threads = 0;

  bool operator==(const Flags&) const = default;

  // `products`: the operator multiplies matrices, so that their precision matters; `cuda`: on a
  // GPU, for which it is another one.
  static Flags current(bool products, bool cuda);
};

// Sets the flags as they were for the duration of a replay. Costs a comparison when they still are.
class FlagsGuard {
 public:
  explicit FlagsGuard(const Flags& flags);
  ~FlagsGuard();
  FlagsGuard(const FlagsGuard&) = delete;
  FlagsGuard& operator=(const FlagsGuard&) = delete;

 private:
  const Flags live_;
  const Flags replayed_;
  const bool changed_;
};

}  // namespace coop
