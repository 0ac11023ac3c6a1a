// A point in the work of a device after which a block may be used again: another stream has done
// with it, a copy is complete, an asynchronous operator has ended. The host implements it.
#pragma once

namespace coop {

class Fence {
 public:
  virtual ~Fence() = default;
  // Whether it has been passed. With `wait`, after waiting for it: the answer is true.
  virtual bool passed(bool wait) = 0;
};

}  // namespace coop
