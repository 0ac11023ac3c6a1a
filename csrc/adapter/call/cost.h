// What an operator costs: a roofline over its floating-point operations and the bytes it moves.
#pragma once

#include "core/types.h"

namespace coop {

struct Call;
class Invocation;

struct DeviceProfile {
  double flops_per_ns = 60;       // float32
  double half_flops_per_ns = 60;  // bfloat16 and float16
  double bytes_per_ns = 8;
  double launch_ns = 1000;
};

// Floating-point operations by torch's own formulas (torch.utils.flop_counter), 0 where it has
// none.
double count_flops(const Call& call, const Invocation& invocation);

Cost roofline(const DeviceProfile& profile, double flops, bool half, double bytes);

}  // namespace coop
