#include "torch/cost.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace coop {

namespace {

double product(c10::IntArrayRef sizes, size_t begin = 0) {
  double result = 1;
  for (size_t i = begin; i < sizes.size(); ++i) result *= static_cast<double>(sizes[i]);
  return result;
}

// a: m x k, b: k x n
double mm_flops(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * product(a.sizes()) * static_cast<double>(b.size(1));
}

double bmm_flops(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * product(a.sizes()) * static_cast<double>(b.size(2));
}

// One multiplication and one addition for every element of the filter at every place it visits:
// those of the output, or of the input of a transposed convolution.
double convolution_flops(c10::IntArrayRef input, c10::IntArrayRef weight, c10::IntArrayRef output,
                         bool transposed) {
  return 2.0 * static_cast<double>(input[0]) * product(transposed ? input : output, 2) *
         product(weight);
}

// queries x keys and scores x values; five such products backwards.
double attention_flops(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const double queries = product(query.sizes().slice(0, 3));
  return 2.0 * queries * static_cast<double>(key.size(2)) *
         static_cast<double>(query.size(3) + value.size(3));
}

double attention_backward_flops(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value) {
  const double queries = product(query.sizes().slice(0, 3));
  const double keys = static_cast<double>(key.size(2));
  return 2.0 * queries * keys *
         (3.0 * static_cast<double>(query.size(3)) + 2.0 * static_cast<double>(value.size(3)));
}

double convolution_backward_flops(const c10::IValue* arguments) {
  // grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
  // groups, output_mask
  const at::Tensor& grad = arguments[0].toTensor();
  const at::Tensor& input = arguments[1].toTensor();
  const at::Tensor& weight = arguments[2].toTensor();
  const bool transposed = arguments[7].toBool();
  const c10::List<bool> mask = arguments[10].toBoolList();
  // Both gradients visit as many places as the forward does.
  const double one = convolution_flops(input.sizes(), weight.sizes(), grad.sizes(), transposed);
  return one * (static_cast<int>(mask[0]) + static_cast<int>(mask[1]));
}

// Every weight meets every element of the sequence: no formula of torch's exists.
double rnn_flops(const OpInfo& info, const c10::IValue* arguments) {
  double weights = 0;
  double positions = 0;
  bool first = true;
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    if (info.arguments[i] == ArgumentKind::kTensorList && arguments[i].isTensorList()) {
      const auto list = arguments[i].toTensorList();
      for (size_t j = 0; j < list.size(); ++j) weights += product(at::Tensor(list[j]).sizes());
    } else if (info.arguments[i] == ArgumentKind::kTensor && arguments[i].isTensor() &&
               arguments[i].toTensor().defined()) {
      const at::Tensor& tensor = arguments[i].toTensor();
      if (first && tensor.dim() == 3) {
        positions = static_cast<double>(tensor.size(0) * tensor.size(1));
        first = false;
      } else if (tensor.dim() == 2 && weights == 0) {
        weights += product(tensor.sizes());
      }
    }
  }
  const bool backward = info.name.find("backward") != std::string::npos;
  return (backward ? 4.0 : 2.0) * weights * positions;
}

}  // namespace

double count_flops(const OpInfo& info, const c10::IValue* arguments, const c10::IValue* results) {
  auto tensor = [&](size_t i) -> const at::Tensor& { return arguments[i].toTensor(); };
  switch (info.flops) {
    case FlopFormula::kNone:
      return 0;
    case FlopFormula::kMm:
      return mm_flops(tensor(0), tensor(1));
    case FlopFormula::kAddmm:
      return mm_flops(tensor(1), tensor(2));
    case FlopFormula::kBmm:
      return bmm_flops(tensor(0), tensor(1));
    case FlopFormula::kBaddbmm:
      return bmm_flops(tensor(1), tensor(2));
    case FlopFormula::kConvolution: {
      if (results == nullptr || !results[0].isTensor()) return 0;
      // input, weight, bias, stride, padding, dilation, transposed, ...
      const bool transposed = arguments[6].isBool() && arguments[6].toBool();
      return convolution_flops(tensor(0).sizes(), tensor(1).sizes(), results[0].toTensor().sizes(),
                               transposed);
    }
    case FlopFormula::kConvolutionBackward:
      return convolution_backward_flops(arguments);
    case FlopFormula::kAttention:
      return attention_flops(tensor(0), tensor(1), tensor(2));
    case FlopFormula::kAttentionBackward:
      return attention_backward_flops(tensor(1), tensor(2), tensor(3));
    case FlopFormula::kRnn:
      return rnn_flops(info, arguments);
  }
  return 0;
}

Cost roofline(const DeviceProfile& profile, double flops, bool half, double bytes) {
  const double rate = half ? profile.half_flops_per_ns : profile.flops_per_ns;
  return std::round(profile.launch_ns + std::max(flops / rate, bytes / profile.bytes_per_ns));
}

}  // namespace coop
