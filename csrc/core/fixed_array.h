// An array whose length is set once. Up to N elements live inside it, and elements never move, so
// they may be members of intrusive lists.
#pragma once

#include <cstddef>
#include <memory>

namespace coop {

template <typename T, size_t N>
class FixedArray {
 public:
  FixedArray() = default;
  FixedArray(const FixedArray&) = delete;
  FixedArray& operator=(const FixedArray&) = delete;

  void set_size(size_t size) {
    if (size > N) heap_ = std::make_unique<T[]>(size);
    size_ = size;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return heap_ ? heap_.get() : inline_; }
  T* end() { return begin() + size_; }
  const T* begin() const { return heap_ ? heap_.get() : inline_; }
  const T* end() const { return begin() + size_; }
  T& operator[](size_t index) { return begin()[index]; }
  const T& operator[](size_t index) const { return begin()[index]; }

 private:
  size_t size_ = 0;
  T inline_[N] = {};
  std::unique_ptr<T[]> heap_;
};

}  // namespace coop
