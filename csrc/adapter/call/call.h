// What is known of one running operator.
#pragma once

#include <memory>
#include <vector>

#include "adapter/call/gradients.h"
#include "adapter/call/operands.h"
#include "core/engine/operation.h"

namespace coop {

struct Call {
  const OpInfo* info = nullptr;
  uint16_t source = 0;  // see source.h
  Operands operands;
  Operation operation;            // what the core has locked for it, and what it writes
  const char* refusal = nullptr;  // why it gets no recipe; null: nothing is against one
  Side side = Side::kRight;
  const Backward* backward = nullptr;  // null: nobody has looked yet
  std::vector<Storage*> fresh;         // what it made, in the order of its results
  // The result that shows each of them; null: it is not understood.
  std::vector<const c10::TensorImpl*> results;
  std::vector<Value*> inputs;  // what its recipe reads

  // Whether a replay would do the same.
  bool is_replayable() const { return refusal == nullptr && operands.understood; }
};

// Calls keep their memory for the next operator. Operators may nest (a custom operator written in
// Python), so each depth of a thread has one of its own.
class CallLease {
 public:
  CallLease() : pool_(pool()) {
    if (pool_.depth == pool_.calls.size()) pool_.calls.push_back(std::make_unique<Call>());
    call_ = pool_.calls[pool_.depth++].get();
  }
  ~CallLease() {
    call_->operands.clear();
    call_->fresh.clear();
    call_->results.clear();
    call_->inputs.clear();
    --pool_.depth;
  }
  CallLease(const CallLease&) = delete;
  CallLease& operator=(const CallLease&) = delete;
  Call& operator*() const { return *call_; }

 private:
  struct Pool {
    std::vector<std::unique_ptr<Call>> calls;
    size_t depth = 0;
  };
  static Pool& pool() {
    static thread_local Pool instance;
    return instance;
  }

  Pool& pool_;
  Call* call_;
};

}  // namespace coop
