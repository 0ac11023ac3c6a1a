// The bytes that hold copies of values which have left the arena. The core says which of them hold
// what (core/space/host_pool.h); here they are taken from the system, in large pieces, as they are
// first needed, and kept until the engine goes.
#pragma once

#include <cstddef>

#include "core/types.h"

namespace coop {

class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Where the bytes from `offset` on are. `*bytes`: how many are wanted, and how many of them lie
  // there in one piece. Null: the system has no more.
  virtual std::byte* find(Bytes offset, Bytes* bytes) = 0;
};

}  // namespace coop
