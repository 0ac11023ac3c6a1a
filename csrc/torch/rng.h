// The state of a random generator, as it was before an operator drew from it (Rule 8).
#pragma once

#include <ATen/core/Generator.h>

namespace coop {

class RngState {
 public:
  RngState() = default;
  // Captures the state of `generator`.
  explicit RngState(const at::Generator& generator);

  // Puts the captured state back.
  void restore() const;
  bool is_set() const { return generator_.defined(); }

  // Puts the captured state into the generator for the duration of a replay, and the live state
  // back afterwards.
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
  at::Generator generator_;
  at::Generator captured_;
};

// The generator an operator on this device draws from when it is given none.
at::Generator default_generator(c10::Device device);

}  // namespace coop
