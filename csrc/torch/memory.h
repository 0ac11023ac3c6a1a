// The region of one device that an arena's offsets point into: all that is specific to a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include "core/types.h"

namespace coop {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual c10::Device device() const = 0;
  virtual char* base() const = 0;
  // Bytes before every block's content where the host keeps the way back from an address to its
  // storage: torch frees some main memory by address alone (oneDNN's scratch). 0: none.
  virtual Bytes header_bytes() const { return 0; }
  // In the order of the operators of the current stream.
  virtual void copy(void* to, const void* from, Bytes bytes) = 0;
  // A block's bytes are not needed any more: its pages may go back to the system.
  virtual void discard(Bytes offset, Bytes bytes) = 0;
  // Memory outside of the arena, for what outlives a session.
  virtual c10::DataPtr allocate_outside(Bytes bytes) = 0;
};

}  // namespace coop
