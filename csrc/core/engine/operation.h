// One running operator, from begin to commit or abort. What it uses is locked meanwhile; an
// operation that goes out of scope before it has ended is aborted, so nothing stays locked after a
// throw. Reused by the host from call to call.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "core/model/value.h"

namespace coop {

class Operators;

// A storage that an operator is about to write.
struct Write {
  enum class Kind : uint8_t {
    kRoot,     // stays a root, written where it is
    kInPlace,  // a new version at the same address (Rule 5)
    kCopied,   // copy on write: a new version at another address
  };
  Storage* storage = nullptr;
  Value* old = nullptr;  // what the recipe reads; null for a root that nothing needs
  Kind kind = Kind::kRoot;
  bool keep_old = false;    // the operator makes or writes other values too, so that a replay needs
                            // the old bytes of a root
  bool make_root = false;   // what is written stays for good
  bool overwrites = false;  // all of the storage, none of which is read
  bool prepared = false;    // by begin()
  bool lets_leave = false;  // what it becomes may leave by a copy, once the operator has ended:
                            // it is not locked
  bool counted = false;     // among the storage's writers

  bool makes_version() const { return kind != Kind::kRoot && !storage->dead; }
};

class Operation {
 public:
  Operation() = default;
  ~Operation();
  Operation(Operation&& other) noexcept
      : writes(std::move(other.writes)),
        quiet(other.quiet),
        lets_go(other.lets_go),
        undefined(other.undefined),
        locked_(std::move(other.locked_)),
        operators_(std::exchange(other.operators_, nullptr)) {}
  Operation& operator=(Operation&&) = delete;

  bool is_running() const { return operators_ != nullptr; }
  bool has_locked(const Value* value) const {
    return std::find(locked_.begin(), locked_.end(), value) != locked_.end();
  }

  std::vector<Write> writes;  // told before begin()
  bool quiet = false;         // it could get a recipe, but does not (see QuietSteps)
  bool lets_go = false;       // what dies while it runs gives its bytes up at once
  bool undefined = false;     // what it makes is for others to write (see Value::undefined)

 private:
  friend class Operators;

  std::vector<Value*> locked_;
  Operators* operators_ = nullptr;  // null: not begun, or ended
};

}  // namespace coop
