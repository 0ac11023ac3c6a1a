// An array whose capacity is set once. Up to N elements live inside it, and elements never move, so
// they may be members of intrusive lists.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace coop {

template <typename T, size_t N>
class FixedArray {
  static_assert(std::is_trivially_destructible_v<T>);
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

 public:
  FixedArray() = default;
  FixedArray(const FixedArray&) = delete;
  FixedArray& operator=(const FixedArray&) = delete;

  // Once, before the first element.
  void reserve(size_t capacity) {
    if (capacity > N) heap_.reset(static_cast<T*>(::operator new(capacity * sizeof(T))));
  }
  // Within the capacity.
  template <typename... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    return *new (begin() + size_++) T{std::forward<Arguments>(arguments)...};
  }
  // Once, instead of both.
  void assign(size_t size, const T& value) {
    reserve(size);
    size_ = size;
    std::uninitialized_fill_n(begin(), size, value);
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
  struct Free {
    void operator()(T* memory) const { ::operator delete(memory); }
  };

  size_t size_ = 0;
  std::unique_ptr<T, Free> heap_;
  alignas(T) std::byte inline_[N * sizeof(T)];  // not initialized: most of it is never used
};

}  // namespace coop
