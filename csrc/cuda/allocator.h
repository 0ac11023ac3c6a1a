// What torch sees: the allocator that its CUDA tensors come from once it is installed.
#pragma once

#include <functional>

#include "adapter/engine.h"

namespace coop {

// Replaces torch's CUDA allocator by ours, for the life of the process. Must come before CUDA is
// started; throws otherwise. The arena of a device is made when that device is first used:
// `configure` says with which budget.
void install_cuda_allocator(std::function<EngineConfig(int device)> configure);
bool is_cuda_allocator_installed();

}  // namespace coop
