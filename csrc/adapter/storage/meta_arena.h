// An arena without memory: an engine over tensors that have shapes and no bytes (the meta device,
// fake tensors), so that a program can be recorded without the hardware it needs.
#pragma once

#include <memory>

#include "adapter/storage/memory.h"

namespace coop {

std::unique_ptr<Memory> make_meta_memory(Bytes bytes);

// Allocations on the meta device go to its engine from now on, while there is one.
void install_meta_allocator();

// Whether what this thread makes from now on takes room in the arena; returns what it was. Tensors
// by which torch only looks for shapes take none.
bool set_meta_counts(bool on);

// What resizing a storage does where there is memory: the bytes it had are given back. (Torch only
// notes the new number.)
void resize_meta(c10::StorageImpl& storage, Bytes bytes);

}  // namespace coop
