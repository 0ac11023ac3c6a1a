// The streams of one GPU: which of them use what, and in which order they go on.
//
// Blocks are reused in the order of the main stream, torch's default one. What only that stream
// uses may be reused at once; what another one has used waits for a fence behind that.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/space/fence.h"

namespace coop {

struct Storage;

// Events are made when they are first needed, and used again. Each is unused, or one fence's.
class Events {
 public:
  cudaEvent_t take();          // throws
  cudaEvent_t take_or_null();  // the same for deleters, which must not throw
  void give_back(cudaEvent_t event) { unused_.push_back(event); }

 private:
  std::vector<cudaEvent_t> unused_;
};

// Invariants: a storage in `users_` is alive; its streams are none of them the main one, and each
// is listed once. Nothing here waits for the GPU, but a fence that is told to, and a GPU that
// fails. Called under the engine's lock.
class Streams {
 public:
  explicit Streams(c10::DeviceIndex device);

  cudaStream_t main() const { return main_; }
  cudaStream_t current() const;

  // An event behind what the stream was given so far; to be given back, waits for it stay.
  cudaEvent_t record(cudaStream_t stream);
  void give_back(cudaEvent_t event) { events_.give_back(event); }
  // `stream` goes on when `other` has done what it was given so far.
  void wait(cudaStream_t stream, cudaStream_t other);

  // The stream uses the storage, until it dies at least.
  void use(const Storage* storage, cudaStream_t stream);
  // The storage is dead: a fence behind all that other streams were given so far, or null where
  // there is nothing to wait for. Called by deleters: it does not throw.
  std::unique_ptr<Fence> after_last_use(const Storage* storage);

 private:
  const c10::DeviceIndex device_;
  const cudaStream_t main_;
  Events events_;
  std::unordered_map<const Storage*, std::vector<cudaStream_t>> users_;
};

}  // namespace coop
