// The arena in main memory, and the allocator that torch's CPU tensors come from while it is in
// use.
#pragma once

#include <memory>

#include "adapter/storage/memory.h"

namespace coop {

// The arena takes exactly `bytes`.
std::unique_ptr<Memory> make_cpu_memory(Bytes bytes);

// Puts our allocator in front of torch's. Threads where the engine is off are not affected.
void install_cpu_allocator();

// Calls `call` once, from inside an allocation on any thread, when so many bytes were allocated in
// main memory outside of a budget. Zero: not any more.
void await_first_bytes(Bytes bytes, void (*call)());

}  // namespace coop
