#include "cuda/pinned_memory.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>

#include "cuda/streams.h"

namespace coop {

namespace {

// What is taken at once. To take a piece costs tens of milliseconds, once.
constexpr Bytes kPiece = Bytes{256} << 20;
// Operators between two marks, in ns of their cost.
constexpr double kBetweenMarks = 2e5;

bool overlap(const std::byte* a, Bytes a_bytes, const std::byte* b, Bytes b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

bool overlap(const HostExtents& a, const HostExtents& b) {
  for (const HostExtent& x : a) {
    for (const HostExtent& y : b) {
      if (x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes) return true;
    }
  }
  return false;
}

bool is_passed(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  C10_CUDA_CHECK(status);
  return true;
}

}  // namespace

// --- one direction -------------------------------------------------------------------------------

// Not blocking: the default stream would wait for all that it is given otherwise.
CopyStream::CopyStream(c10::DeviceIndex device, Streams& streams)
    : device_(device), streams_(streams) {
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

// If something fails in the middle, what the stream was given by then is waited for: nobody else
// knows of it.
template <typename F>
void CopyStream::copy(const std::byte* begin, Bytes bytes, const HostExtents& extents, F&& f) {
  try {
    f();
    copies_.push_back({begin, bytes, extents, streams_.record(stream_)});
  } catch (...) {
    (void)cudaStreamSynchronize(stream_);
    throw;
  }
}

// The last one that does: what is before it is done before it.
void CopyStream::let_wait(cudaStream_t stream, const std::byte* begin, Bytes bytes,
                          const HostExtents* extents) {
  for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
    const bool touches = (begin != nullptr && overlap(copy->begin, copy->bytes, begin, bytes)) ||
                         (extents != nullptr && overlap(copy->extents, *extents));
    if (!touches) continue;
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, copy->done, 0));
    return;
  }
}

void CopyStream::let_main_wait(const std::byte* begin, Bytes bytes) {
  for (auto copy = copies_.rbegin(); copy != copies_.rend() && !copy->main_waits; ++copy) {
    if (!overlap(copy->begin, copy->bytes, begin, bytes)) continue;
    // The handle of a default stream is 0, which means the current device's.
    const c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(cudaStreamWaitEvent(streams_.main(), copy->done, 0));
    copy->main_waits = true;
    return;
  }
}

void CopyStream::forget_done() {
  while (!copies_.empty() && is_passed(copies_.front().done)) {
    streams_.give_back(copies_.front().done);
    copies_.pop_front();
  }
}

// --- both ----------------------------------------------------------------------------------------

PinnedMemory::PinnedMemory(Bytes bytes, c10::DeviceIndex device, Streams& streams)
    : bytes_(bytes),
      device_(device),
      streams_(streams),
      out_(device, streams),
      in_(device, streams),
      pieces_(static_cast<size_t>((bytes + kPiece - 1) / kPiece), nullptr) {}

// False: the system refuses to lock as much.
bool PinnedMemory::take(const HostExtents& extents) {
  for (const HostExtent& extent : extents) {
    const Bytes last = (extent.offset + extent.bytes - 1) / kPiece;
    for (Bytes index = extent.offset / kPiece; index <= last; ++index) {
      std::byte*& piece = pieces_[static_cast<size_t>(index)];
      if (piece != nullptr) continue;
      void* taken = nullptr;
      const auto bytes = static_cast<size_t>(std::min(kPiece, bytes_ - index * kPiece));
      if (cudaHostAlloc(&taken, bytes, cudaHostAllocPortable) != cudaSuccess) {
        (void)cudaGetLastError();
        return refuse();
      }
      piece = static_cast<std::byte*>(taken);
    }
  }
  return true;
}

// Calls f(address, bytes before it, bytes) for the pieces in main memory.
template <typename F>
void PinnedMemory::for_each_address(const HostExtents& extents, Bytes bytes, F&& f) {
  for_each_piece(extents, bytes, kPiece, [&](Bytes offset, Bytes done, Bytes piece) {
    f(pieces_[static_cast<size_t>(offset / kPiece)] + offset % kPiece, done,
      static_cast<size_t>(piece));
  });
}

bool PinnedMemory::copy_out(const HostExtents& to, const std::byte* from, Bytes bytes,
                            double last_use) {
  const c10::cuda::CUDAGuard guard(device_);
  if (!take(to)) return false;
  out_.forget_done();
  in_.forget_done();
  wait_for_use(last_use);
  in_.let_wait(out_.stream(), from, bytes, &to);
  out_.copy(from, bytes, to, [&] {
    for_each_address(to, bytes, [&](std::byte* address, Bytes done, size_t piece) {
      C10_CUDA_CHECK(
          cudaMemcpyAsync(address, from + done, piece, cudaMemcpyDeviceToHost, out_.stream()));
    });
  });
  return true;
}

void PinnedMemory::copy_in(std::byte* to, const HostExtents& from, Bytes bytes, bool later) {
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t current = streams_.current();
  out_.forget_done();
  in_.forget_done();
  streams_.wait(in_.stream(), streams_.main());
  streams_.wait(in_.stream(), current);
  out_.let_wait(in_.stream(), to, bytes, &from);
  in_.copy(to, bytes, from, [&] {
    for_each_address(from, bytes, [&](const std::byte* address, Bytes done, size_t piece) {
      C10_CUDA_CHECK(
          cudaMemcpyAsync(to + done, address, piece, cudaMemcpyHostToDevice, in_.stream()));
    });
  });
  if (!later) before_use(to, bytes);
}

void PinnedMemory::before_use(const std::byte* begin, Bytes bytes) {
  in_.let_main_wait(begin, bytes);
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t current = streams_.current();
  if (current != streams_.main()) in_.let_wait(current, begin, bytes, nullptr);
}

// Waits for the GPU: a test.
bool PinnedMemory::is_copy(const HostExtents& extents, const std::byte* content, Bytes bytes) {
  const c10::cuda::CUDAGuard guard(device_);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<std::byte> here(static_cast<size_t>(bytes));
  C10_CUDA_CHECK(cudaMemcpy(here.data(), content, here.size(), cudaMemcpyDeviceToHost));
  bool same = true;
  for_each_address(extents, bytes, [&](const std::byte* address, Bytes done, size_t piece) {
    same &= std::memcmp(address, here.data() + done, piece) == 0;
  });
  return same;
}

// --- marks ---------------------------------------------------------------------------------------

// What other streams use does not leave. While a stream is captured, no event may be recorded.
void PinnedMemory::reached(double clock) {
  if (!marks_.empty() && clock < marks_.back().clock + kBetweenMarks) return;
  if (streams_.current() != streams_.main()) return;
  const c10::cuda::CUDAGuard guard(device_);
  while (marks_.size() > 1 && is_passed(marks_[1].event)) {
    streams_.give_back(marks_.front().event);
    marks_.pop_front();
  }
  marks_.push_back({clock, streams_.record(streams_.main())});
}

void PinnedMemory::drop_marks() {
  for (const Mark& mark : marks_) streams_.give_back(mark.event);
  marks_.clear();
}

// An operator at the clock of a mark may have been started after it.
void PinnedMemory::wait_for_use(double last_use) {
  for (const Mark& mark : marks_) {
    if (mark.clock <= last_use) continue;
    C10_CUDA_CHECK(cudaStreamWaitEvent(out_.stream(), mark.event, 0));
    return;
  }
  streams_.wait(out_.stream(), streams_.main());
}

}  // namespace coop
