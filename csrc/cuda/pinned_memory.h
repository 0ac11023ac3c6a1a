// Copies of values in page-locked main memory, beside the operators: one stream for each direction.
//
// Note [Copies beside operators]
// Nothing here waits for the GPU. All order is between streams, by events.
//   A copy out reads a block. It begins when the main stream has done the last operator that used
//   the value, which is mostly long past when the value leaves: the host runs ahead of the GPU.
//   Whoever uses the block next goes on when the copy is complete: before_reuse().
//   A copy in writes a block, after all that the main stream was given so far, and after the copies
//   out that read the block. Who reads the block, or gives it to others, goes on when it is
//   complete: before_use(), before_reuse(). Where nobody begins it ahead, that is at once.
//   Bytes of the pool that were given back are used again in the same way: what writes them waits
//   for what reads them.
//
// When the main stream has done what is known from marks: events that it is given now and then,
// with the clock of the operators. What no operator tells (moves) makes all marks void.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <deque>
#include <vector>

#include "adapter/storage/host_memory.h"

namespace coop {

class Streams;

// One direction: a stream, and what it was given that may not be done yet, oldest first.
class CopyStream {
 public:
  CopyStream(c10::DeviceIndex device, Streams& streams);

  cudaStream_t stream() const { return stream_; }
  // f gives it the copy between these bytes of the arena and these of the pool.
  template <typename F>
  void copy(const std::byte* begin, Bytes bytes, const HostExtents& extents, F&& f);
  // `stream` goes on when the copies that touch one or the other are done. Null: none does.
  void let_wait(cudaStream_t stream, const std::byte* begin, Bytes bytes,
                const HostExtents* extents);
  // The same for the main stream, which is asked again and again.
  void let_main_wait(const std::byte* begin, Bytes bytes);
  void forget_done();

 private:
  struct Copy {
    const std::byte* begin;
    Bytes bytes;
    HostExtents extents;
    cudaEvent_t done;
    bool main_waits = false;  // for it, and so for all before it
  };

  const c10::DeviceIndex device_;
  Streams& streams_;
  cudaStream_t stream_ = nullptr;
  std::deque<Copy> copies_;
};

// Under the engine's lock. Kept for the life of the process, as the arena is.
class PinnedMemory final : public HostMemory {
 public:
  PinnedMemory(Bytes bytes, c10::DeviceIndex device, Streams& streams);

  bool copy_out(const HostExtents& to, const std::byte* from, Bytes bytes,
                double last_use) override;
  void copy_in(std::byte* to, const HostExtents& from, Bytes bytes, bool later) override;
  void before_use(const std::byte* begin, Bytes bytes) override;
  bool is_copy(const HostExtents& extents, const std::byte* content, Bytes bytes) override;
  void reached(double clock) override;

  void before_reuse(const std::byte* begin, Bytes bytes) override {
    out_.let_main_wait(begin, bytes);
    in_.let_main_wait(begin, bytes);
  }
  // The main stream was given something that no operator tells.
  void drop_marks();

 private:
  struct Mark {
    double clock;
    cudaEvent_t event;
  };

  bool take(const HostExtents& extents);
  void wait_for_use(double last_use);
  template <typename F>
  void for_each_address(const HostExtents& extents, Bytes bytes, F&& f);

  const Bytes bytes_;
  const c10::DeviceIndex device_;
  Streams& streams_;
  CopyStream out_;
  CopyStream in_;
  std::vector<std::byte*> pieces_;  // null: not taken yet
  std::deque<Mark> marks_;          // by clock; all but the first may not be passed yet
};

}  // namespace coop
