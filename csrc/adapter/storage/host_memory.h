// The bytes that hold copies of values which have left the arena, and the copies there and back.
// The core says which of the bytes hold what (core/space/host_pool.h); here they are taken from the
// system, in large pieces, as they are first needed, and kept until the engine goes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/space/host_pool.h"
#include "core/types.h"

namespace coop {

class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Copies so many bytes from the arena to the extents. What runs next may use the arena's when it
  // returns. No operator has used them after the clock `last_use`. False: the system has no more
  // memory; nothing was copied.
  virtual bool copy_out(const HostExtents& to, const std::byte* from, Bytes bytes,
                        double last_use) = 0;
  // Copies them back. What runs next may use them when it returns, or, if they are to come later,
  // what runs after before_use(). Of blocks that copies out still read it knows by itself.
  virtual void copy_in(std::byte* to, const HostExtents& from, Bytes bytes, bool later) = 0;
  virtual void before_use(const std::byte*, Bytes) {}
  // For the debug build: whether the extents begin with so many bytes of the arena.
  virtual bool is_copy(const HostExtents& extents, const std::byte* content, Bytes bytes) = 0;
  // What runs next writes these bytes of the arena, which copies may still use.
  virtual void before_reuse(const std::byte*, Bytes) {}
  // Operators have been started up to this clock.
  virtual void reached(double) {}
  // The system has given less than it was asked for: true once.
  bool take_refusal() { return std::exchange(refused_, false); }

 protected:
  bool refuse() {
    refused_ = !was_refused_;
    was_refused_ = true;
    return false;
  }
  // Calls f(offset in the pool, how many bytes came before, bytes of the piece) for what holds the
  // first `bytes`; no piece crosses a multiple of `most`.
  template <typename F>
  static void for_each_piece(const HostExtents& extents, Bytes bytes, Bytes most, F&& f) {
    Bytes done = 0;
    for (const HostExtent& extent : extents) {
      for (Bytes at = 0; at < extent.bytes && done < bytes;) {
        const Bytes offset = extent.offset + at;
        const Bytes piece = std::min({extent.bytes - at, bytes - done, most - offset % most});
        f(offset, done, piece);
        at += piece;
        done += piece;
      }
    }
  }

 private:
  bool refused_ = false;
  bool was_refused_ = false;
};

}  // namespace coop
