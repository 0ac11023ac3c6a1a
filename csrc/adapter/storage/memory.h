// The region of one device that an arena's offsets point into: all that is specific to a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <memory>

#include "adapter/storage/stopwatch.h"
#include "core/space/fence.h"
#include "core/types.h"

namespace coop {

struct Storage;

class Memory {
 public:
  virtual ~Memory() = default;
  virtual c10::Device device() const = 0;
  virtual char* base() const = 0;
  // Bytes before every block's content where the host keeps the way back from an address to its
  // storage: torch frees some main memory by address alone (oneDNN's scratch). 0: none.
  virtual Bytes header_bytes() const { return 0; }
  // Bytes of address space; more than the budget where leaving may need more.
  virtual Bytes reserved_bytes() const = 0;
  // In the order of the operators of the current stream and of the main one.
  virtual void copy(void* to, const void* from, Bytes bytes) = 0;
  // A block's bytes are not needed any more: its pages may go back to the system.
  virtual void discard(Bytes offset, Bytes bytes) = 0;
  // Memory outside of the arena, for what outlives a session; null where there is none.
  virtual c10::DataPtr allocate_outside(Bytes bytes) = 0;
  // Times operators; null where they do not run.
  virtual std::unique_ptr<Stopwatch> make_stopwatch() { return nullptr; }

  // Streams. Blocks are reused in the order of one main stream; what another stream uses must not
  // be reused before that stream is done with it. Called under the engine's lock.
  virtual bool on_main_stream() const { return true; }
  virtual void allocated(Storage*) {}
  // The current stream, which is not the main one, uses what it holds.
  virtual void used(Storage*) {}
  // The storage died: the fence that its block has to wait for; null: none. Must not throw.
  virtual std::unique_ptr<Fence> after_last_use(Storage*) { return nullptr; }
};

}  // namespace coop
