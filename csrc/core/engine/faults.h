// Placements and copies that fail on purpose, for tests of what follows an error.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>

namespace coop {

// As the device says it.
struct CopyFailed : std::runtime_error {
  CopyFailed() : std::runtime_error("a copy failed, for a test") {}
};

class Faults {
 public:
  // The n-th placement from now on fails as if nothing could be evicted, and there is no last
  // resort for it; 0: none. Returns what was left of the last such n.
  int64_t fail_placement(int64_t n) {
    failed_ = false;
    return std::exchange(fail_in_, n);
  }
  // Called by every placement: whether it fails.
  bool strikes() {
    if (fail_in_ <= 0 || --fail_in_ > 0) return false;
    return failed_ = true;
  }
  // The n-th copy to main memory from now on fails; 0: none. Returns what was left of the last n.
  int64_t fail_copy(int64_t n) { return std::exchange(fail_copy_in_, n); }
  bool fails_copy() { return fail_copy_in_ > 0 && --fail_copy_in_ == 0; }
  // The n-th copy from now on, there or back, throws once it has begun; 0: none. Returns what was
  // left of the last n.
  int64_t throw_in_copy(int64_t n) { return std::exchange(throw_in_, n); }
  // Called by the host inside every copy.
  void strike_copy() {
    if (throw_in_ > 0 && --throw_in_ == 0) throw CopyFailed();
  }
  // Whether the last failure was such a one.
  bool has_struck() const { return failed_; }
  bool take() { return std::exchange(failed_, false); }

 private:
  int64_t fail_in_ = 0;
  int64_t fail_copy_in_ = 0;
  int64_t throw_in_ = 0;
  bool failed_ = false;
};

}  // namespace coop
