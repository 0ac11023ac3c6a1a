// The room for copies in main memory: a budget of its own, in bytes, of which no more is ever held.
// A copy lies in as many extents as it takes, so that room is room, wherever it is.
//
// Invariants (checked by is_valid()):
//   extents do not overlap; held + free == bytes; what lies behind `bytes` is nobody's
#pragma once

#include <memory>
#include <vector>

#include "core/space/arena.h"
#include "core/types.h"

namespace coop {

struct Value;

struct HostExtent {
  Bytes offset;
  Bytes bytes;
};
using HostExtents = std::vector<HostExtent>;

class HostPool {
 public:
  HostPool(Bytes bytes, Bytes alignment);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  bool is_on() const { return arena_ != nullptr; }
  Bytes bytes() const { return bytes_; }
  Bytes held() const { return is_on() ? bytes_ - arena_->free_bytes() : 0; }
  Bytes peak() const { return peak_; }
  Bytes free_bytes() const { return bytes_ - held(); }
  // Takes so many bytes, of which so many are free.
  HostExtents take(Value* value, Bytes bytes);
  void give_back(const HostExtents& extents);
  // There is no more main memory than up to the last byte that is held.
  void shrink();
  bool is_valid() const { return !is_on() || (arena_->is_valid() && held() <= bytes_); }

 private:
  Bytes bytes_;
  Bytes peak_ = 0;
  std::unique_ptr<Arena> arena_;   // null: there is none
  std::unique_ptr<Value> nobody_;  // has what there is no memory for
};

}  // namespace coop
