// The state of a random generator, as it was before an operator drew from it (Rule 8).
//
// Note [Random numbers]
// An operator draws under a lock of its generator (DrawLock). A replay gives it a copy of the
// generator. Where it takes none, what it calls is given the copy (DrawScope), on the CPU; kernels
// of GPUs, compiled graphs and custom operators draw from the generator itself, so its state is put
// back for as long as they run. Threads that were there before the budget take no such lock:
//   one that draws while a state is put back may get numbers that were drawn before;
//   one that draws between the capture of a state and the operator's own draw leaves a state that
//   the operator did not draw from. What is replayed is never wrong: how far an operator drew is
//   remembered (on the CPU), and a replay that drew otherwise is an error.
#pragma once

#include <ATen/core/Generator.h>

#include <array>
#include <cstdint>
#include <mutex>

namespace coop {

// Whoever draws from a generator as an operator holds this, so that the state that was captured is
// the one it drew from, and nobody draws from one that a replay has put back. Generators share a
// few locks.
class DrawLock {
 public:
  explicit DrawLock(const at::Generator& generator);

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

class RngState {
 public:
  RngState() = default;
  // Captures the state of `generator`.
  explicit RngState(const at::Generator& generator);

  // Puts the captured state back.
  void restore() const;
  // The operator has drawn: remembers how far.
  void ran() { drawn_ = drawn_by(generator_); }
  // Whether a replay has drawn from `generator` as the operator did. It has not if a thread outside
  // of the budget, which takes no DrawLock, drew from it too, now or then.
  bool is_as_before(const at::Generator& generator) const { return drawn_by(generator) == drawn_; }
  // Whether the generator is elsewhere than it was.
  bool has_drawn() const;
  bool is_set() const { return generator_.defined(); }
  const at::Generator& generator() const { return generator_; }
  // A generator of the caller's own, with the captured state: nobody else draws from it.
  at::Generator copy() const { return captured_.clone(); }

  // Puts the captured state into the generator for the duration of a replay, and the live state
  // back afterwards. For operators that cannot be given a generator; under a DrawLock.
  class Guard {
   public:
    explicit Guard(const RngState& state);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    at::Generator generator_;
    at::Generator live_;
  };

 private:
  // Where a generator of main memory stands. It draws from a table of numbers that it makes anew
  // when they are used up: what is left of it, and what the table begins and ends with. The others
  // are not looked at: while a graph of CUDA's is captured, they may not be.
  using Drawn = std::array<uint64_t, 3>;
  static Drawn drawn_by(const at::Generator& generator);

  at::Generator generator_;
  at::Generator captured_;
  Drawn drawn_ = {};
};

// The generator an operator on this device draws from when it is given none.
at::Generator default_generator(c10::Device device);

}  // namespace coop
