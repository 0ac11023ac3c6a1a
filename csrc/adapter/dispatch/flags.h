// Global settings that change what an operator computes (Rule 10).
#pragma once

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace coop {

// What kernels read of torch's Context. Equal ones are one object, which is never destroyed.
struct Settings;

struct Flags {
  const Settings* settings = nullptr;
  bool grad_mode = false;  // some kernels keep less when it is off (oneDNN's RNN)
  bool products = false;
  bool cuda = false;
  // Of products in single precision (at::Float32Precision): of matrices, convolutions, RNNs.
  std::array<uint8_t, 3> precisions{};
  c10::ScalarType default_dtype = c10::ScalarType::Float;
  // What only main memory's kernels look at.
  c10::ScalarType autocast_dtype = c10::ScalarType::Undefined;
  bool flush_denormal = false;
  int32_t num_threads = 0;

  bool operator==(const Flags&) const = default;
};

// The flags as they are. One engine's, under its lock.
class FlagsReader {
 public:
  // `products`: the operator may multiply matrices, so that their precision matters; `cuda`: on a
  // GPU, for which it is another one.
  Flags current(bool products, bool cuda);

 private:
  // To ask for two dozen settings takes as many calls, for every recipe. They are members of one
  // object: as long as its bytes are the same, so are they.
  std::array<std::byte, sizeof(at::Context)> seen_{};
  const Settings* settings_ = nullptr;
};

// Sets the flags as they were for the duration of a replay. Costs a comparison when they still are.
class FlagsGuard {
 public:
  FlagsGuard(const Flags& live, const Flags& replayed);
  ~FlagsGuard();
  FlagsGuard(const FlagsGuard&) = delete;
  FlagsGuard& operator=(const FlagsGuard&) = delete;

 private:
  const Flags live_;
  const Flags replayed_;
  const bool changed_;
};

}  // namespace coop
