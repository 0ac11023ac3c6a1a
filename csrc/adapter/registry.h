// Which engines there are, and which threads they see.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace coop {

class Engine;
class Invocation;

// The engine whose arena takes the allocations of a device, or null.
Engine* active_engine(c10::Device device);
// The engine for an operator.
Engine* active_engine(const Invocation& invocation);
void set_active_engine(c10::Device device, std::shared_ptr<Engine> engine);
// Those of the GPUs that were used.
std::vector<std::shared_ptr<Engine>> cuda_engines();
// Whether the address is any engine's.
bool is_in_an_arena(const void* address);
// Lets go of an engine whose session is over, and whose last tensor is gone.
void forget_engine(const Engine* engine);

// So that a child gets no lock that somebody holds: all of them are this thread's meanwhile.
void before_fork();
void after_fork();

// Turns interception on or off for the current thread (and the autograd threads it starts).
void set_thread_enabled(bool enabled);
bool is_thread_enabled();

}  // namespace coop
