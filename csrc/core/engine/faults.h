// Placements and copies that fail on purpose, for tests of what follows an error.
#pragma once

#include <cstdint>
#include <utility>

namespace coop {

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
  // Whether the last failure was such a one.
  bool has_struck() const { return failed_; }
  bool take() { return std::exchange(failed_, false); }

 private:
  int64_t fail_in_ = 0;
  int64_t fail_copy_in_ = 0;
  bool failed_ = false;
};

}  // namespace coop
