// The core's only way out: what the outside does for it, and what the outside allows.
#pragma once

#include <limits>

#include "core/space/host_pool.h"
#include "core/types.h"

namespace coop {

struct SavedBytes;
struct Storage;
struct Value;

// At which end of the arena a thread's allocations are placed. Usually their own; in the last
// resort, those of an operator that are large are placed at one end and the other in turn.
class Ends {
 public:
  Side choose(Bytes bytes, Side own) {
    if (bytes < alternating_bytes_) return own;
    const Side end = next_;
    next_ = end == Side::kLeft ? Side::kRight : Side::kLeft;
    return end;
  }
  void alternate_from(Bytes bytes) {
    alternating_bytes_ = bytes;
    next_ = Side::kRight;
  }
  void stop_alternating() { alternating_bytes_ = kNever; }

 private:
  static constexpr Bytes kNever = std::numeric_limits<Bytes>::max();

  Bytes alternating_bytes_ = kNever;
  Side next_ = Side::kRight;
};

class Host {
 public:
  virtual ~Host() = default;
  // The storage lost its bytes.
  virtual void release(Storage& storage) = 0;
  // The storage's bytes are at storage.value->offset now.
  virtual void restore(Storage& storage) = 0;
  virtual void copy(Value& to, const Value& from, Bytes bytes) = 0;
  // The value's bytes were at `from` and belong at value.offset; they may overlap.
  // Its storage, if it has one, is there from now on.
  virtual void move(Value& value, Bytes from) = 0;
  // Whether values that are not locked may be moved now, and whether gradients may too: nobody else
  // can be reading them while they are being accumulated, or while an optimizer runs.
  virtual bool may_move() const { return true; }
  virtual bool may_move_gradients() const { return true; }
  // Whether what asks for memory now is tried again when it does not fit.
  virtual bool may_retry() const { return false; }
  // While a replay runs: whether it is what asks for memory now, not an operator of another thread.
  virtual bool is_replaying() const { return true; }
  // Those of the thread that asks. Threads run operators at the same time, and one that ends must
  // not change how those of another are placed.
  virtual Ends& ends() { return ends_; }
  // For quiet steps: a recipe with its cost, for one value whose bytes it will hold. Asked for only
  // if the configuration has quiet steps.
  virtual SavedBytes* new_saved_bytes(const Value&) { return nullptr; }

  // Copies in main memory, if the configuration has any: the core says which of the pool's bytes
  // hold what. In the order of the operators: when it returns, the value's block may be used for
  // what is placed next. No operator has used it after the clock `last_use`. False: it could not be
  // done, and the pool gets no larger.
  virtual bool copy_out(const Value&, const HostExtents&, double) { return false; }
  // The value has been given a block, or is about to be written: a copy may still read the block.
  virtual void placed(const Value&) {}
  // A fresh storage from Core::allocate, with the bytes of the value: what runs next may use them,
  // or, if it is to come later, what runs after arrived().
  virtual Storage* copy_in(const Value&, const HostExtents&, bool /*later*/) { return nullptr; }
  virtual void arrived(const Value&) {}
  // For the debug build: whether the value's bytes are those of its copy.
  virtual bool is_copy(const Value&, const HostExtents&) { return true; }

 private:
  Ends ends_;
};

}  // namespace coop
