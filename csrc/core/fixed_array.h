// An array whose length is set once. Up to N elements live inside it, and elements never move, so
// they may be members of intrusive lists.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace coop {

template <typename T, size_t N>
class FixedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  FixedArray() = default;
  FixedArray(const FixedArray&) = delete;
  FixedArray& operator=(const FixedArray&) = delete;

  void set_size(size_t size) {
    size_ = size;
    if (size > N) {
      heap_ = std::make_unique<T[]>(size);
    } else {
      std::uninitialized_value_construct_n(begin(), size);
    }
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return heap_ ? heap_.get() : std::launder(reinterpret_cast<T*>(inline_)); }
  T* end() { return begin() + size_; }
  const T* begin() const {
    return heap_ ? heap_.get() : std::launder(reinterpret_cast<const T*>(inline_));
  }
  const T* end() const { return begin() + size_; }
  T& operator[](size_t index) { return begin()[index]; }
  const T& operator[](size_t index) const { return begin()[index]; }

 private:
  size_t size_ = 0;
  std::unique_ptr<T[]> heap_;
  alignas(T) std::byte inline_[N * sizeof(T)];  // not initialized: most of it is never used
};

}  // namespace coop
