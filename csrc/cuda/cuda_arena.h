// The arena on a GPU, and the allocator that torch's CUDA tensors come from once it is installed.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "adapter/engine.h"

namespace coop {

// Replaces torch's CUDA allocator by ours, for the life of the process. Must come before CUDA is
// started; throws otherwise. The arena of a device is made when that device is first used:
// `configure` says with which budget.
void install_cuda_allocator(std::function<EngineConfig(int device)> configure);
bool is_cuda_allocator_installed();

// What the driver says is free, and there is in all.
std::pair<Bytes, Bytes> cuda_memory(int device);

}  // namespace coop
