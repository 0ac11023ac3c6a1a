#include "adapter/call/cost.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "adapter/call/call.h"
#include "adapter/dispatch/tensor_kinds.h"

namespace coop {

namespace {

double product(c10::IntArrayRef sizes, size_t begin = 0) {
  double result = 1;
  for (size_t i = begin; i < sizes.size(); ++i) result *= static_cast<double>(sizes[i]);
  return result;
}

// a: m x k, b: k x n
double mm_flops(c10::IntArrayRef a, c10::IntArrayRef b) {
  return 2.0 * product(a) * static_cast<double>(b[1]);
}

double bmm_flops(c10::IntArrayRef a, c10::IntArrayRef b) {
  return 2.0 * product(a) * static_cast<double>(b[2]);
}

// One multiplication and one addition for every element of the filter at every place it visits:
// those of the output, or of the input of a transposed convolution.
double convolution_flops(c10::IntArrayRef input, c10::IntArrayRef weight, c10::IntArrayRef output,
                         bool transposed) {
  return 2.0 * static_cast<double>(input[0]) * product(transposed ? input : output, 2) *
         product(weight);
}

// queries x keys and scores x values; five such products backwards.
double attention_flops(c10::IntArrayRef query, c10::IntArrayRef key, c10::IntArrayRef value) {
  return 2.0 * product(query.slice(0, 3)) * static_cast<double>(key[2]) *
         static_cast<double>(query[3] + value[3]);
}

double attention_backward_flops(c10::IntArrayRef query, c10::IntArrayRef key,
                                c10::IntArrayRef value) {
  return 2.0 * product(query.slice(0, 3)) * static_cast<double>(key[2]) *
         (3.0 * static_cast<double>(query[3]) + 2.0 * static_cast<double>(value[3]));
}

// Every weight meets every element of the sequence: no formula of torch's exists.
double rnn_flops(const Call& call) {
  double weights = 0;
  double positions = 0;
  for (const TensorArgument& argument : call.operands.tensors) {
    if (argument.tensor == nullptr) continue;
    const c10::IntArrayRef sizes = argument.tensor->sizes();
    if (argument.list_index >= 0) {
      weights += product(sizes);
    } else if (positions == 0 && sizes.size() == 3) {
      positions = static_cast<double>(sizes[0] * sizes[1]);
    } else if (sizes.size() == 2 && weights == 0) {
      weights += product(sizes);
    }
  }
  const bool backward = call.info->name.find("backward") != std::string::npos;
  return (backward ? 4.0 : 2.0) * weights * positions;
}

// The sizes of three consecutive arguments.
struct Sizes {
  Sizes(const Call& call, int32_t first) {
    for (const TensorArgument& argument : call.operands.tensors) {
      const int32_t i = argument.argument - first;
      if (i < 0 || i > 2 || argument.tensor == nullptr) continue;
      sizes[i] = argument.tensor->sizes();
      known[i] = true;
    }
  }
  c10::IntArrayRef operator[](size_t i) const { return sizes[i]; }

  std::array<c10::IntArrayRef, 3> sizes;
  std::array<bool, 3> known{};  // a strided tensor
};

}  // namespace

double count_flops(const Call& call, const Invocation& invocation) {
  const FlopFormula formula = call.info->flops;
  if (formula == FlopFormula::kNone) return 0;
  if (formula == FlopFormula::kRnn) return rnn_flops(call);
  if (formula == FlopFormula::kRegion) return call.info->region_flops;
  const bool skips_first = formula == FlopFormula::kAddmm || formula == FlopFormula::kBaddbmm ||
                           formula == FlopFormula::kAttentionBackward;
  const Sizes sizes(call, skips_first ? 1 : 0);
  if (!sizes.known[0] || !sizes.known[1]) return 0;
  switch (formula) {
    case FlopFormula::kMm:
    case FlopFormula::kAddmm:
      return mm_flops(sizes[0], sizes[1]);
    case FlopFormula::kBmm:
    case FlopFormula::kBaddbmm:
      return bmm_flops(sizes[0], sizes[1]);
    case FlopFormula::kConvolution: {
      c10::IntArrayRef output;
      // Not of Python's: this is under the lock.
      invocation.for_each_result([&](const at::Tensor& result) {
        if (is_understood(*result.unsafeGetTensorImpl(), call.operands.fake))
          output = result.sizes();
      });
      // input, weight, bias, stride, padding, dilation, transposed, ...
      const c10::IValue transposed = invocation.argument(6);
      return convolution_flops(sizes[0], sizes[1], output,
                               transposed.isBool() && transposed.toBool());
    }
    case FlopFormula::kConvolutionBackward: {
      if (!sizes.known[2]) return 0;
      // grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
      // output_padding, groups, output_mask
      const c10::List<bool> mask = invocation.argument(10).toBoolList();
      // Both gradients visit as many places as the forward does.
      return (static_cast<int>(mask[0]) + static_cast<int>(mask[1])) *
             convolution_flops(sizes[1], sizes[2], sizes[0], invocation.argument(7).toBool());
    }
    case FlopFormula::kAttention:
      return sizes.known[2] ? attention_flops(sizes[0], sizes[1], sizes[2]) : 0;
    case FlopFormula::kAttentionBackward:
      return sizes.known[2] ? attention_backward_flops(sizes[0], sizes[1], sizes[2]) : 0;
    case FlopFormula::kNone:
    case FlopFormula::kRnn:
    case FlopFormula::kRegion:
      break;
  }
  return 0;
}

Cost roofline(const DeviceProfile& profile, double flops, bool half, double bytes) {
  const double rate = half ? profile.half_flops_per_ns : profile.flops_per_ns;
  return std::round(profile.launch_ns + std::max(flops / rate, bytes / profile.bytes_per_ns));
}

}  // namespace coop
