// Bytes by operator, with the operator that needs the most: a tree of maxima with sums put off.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/types.h"

namespace coop {

class Profile {
 public:
  explicit Profile(int32_t size)
      : width_(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(size, 1))))),
        size_(size),
        most_(2 * width_, 0),
        added_(2 * width_, 0) {}

  explicit Profile(const std::vector<Bytes>& bytes) : Profile(static_cast<int32_t>(bytes.size())) {
    std::copy(bytes.begin(), bytes.end(), most_.begin() + width_);
    for (int32_t node = width_ - 1; node >= 1; --node) {
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    }
  }

  // To the operators [begin, end).
  void add(int32_t begin, int32_t end, Bytes bytes) {
    begin = std::max(begin, 0);
    end = std::min(end, size_);
    if (begin < end && bytes != 0) add(1, 0, width_, begin, end, bytes);
  }
  Bytes most() const { return most_[1]; }
  Bytes at(int32_t op) const {
    Bytes sum = 0;
    int32_t node = op + width_;
    sum = most_[node];
    for (node /= 2; node >= 1; node /= 2) sum += added_[node];
    return sum;
  }
  // Of [begin, end).
  Bytes most(int32_t begin, int32_t end) const {
    begin = std::max(begin, 0);
    end = std::min(end, size_);
    return begin < end ? most(1, 0, width_, begin, end) : 0;
  }
  // The first that needs the most.
  int32_t where_most() const {
    int32_t node = 1;
    while (node < width_) node = most_[2 * node] >= most_[2 * node + 1] ? 2 * node : 2 * node + 1;
    return node - width_;
  }

 private:
  void add(int32_t node, int32_t low, int32_t high, int32_t begin, int32_t end, Bytes bytes) {
    if (begin <= low && high <= end) {
      most_[node] += bytes;
      if (node < width_) added_[node] += bytes;
      return;
    }
    const int32_t middle = (low + high) / 2;
    if (begin < middle) add(2 * node, low, middle, begin, end, bytes);
    if (end > middle) add(2 * node + 1, middle, high, begin, end, bytes);
    most_[node] = added_[node] + std::max(most_[2 * node], most_[2 * node + 1]);
  }

  Bytes most(int32_t node, int32_t low, int32_t high, int32_t begin, int32_t end) const {
    if (begin <= low && high <= end) return most_[node];
    const int32_t middle = (low + high) / 2;
    Bytes most_below = std::numeric_limits<Bytes>::min() / 2;
    if (begin < middle) most_below = std::max(most_below, most(2 * node, low, middle, begin, end));
    if (end > middle)
      most_below = std::max(most_below, most(2 * node + 1, middle, high, begin, end));
    return added_[node] + most_below;
  }

  int32_t width_;
  int32_t size_;
  std::vector<Bytes> most_;
  std::vector<Bytes> added_;  // to all below a node
};

}  // namespace coop
