// A compact binary log of what the core did. Off by default; when off, each emit() is one branch.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace coop {

enum class EventKind : uint8_t {
  kAllocate = 0,  // value, offset, bytes; detail: 0 left, 1 right, 2 small
  kFree = 1,      // value, offset, bytes
  kEvict = 2,     // value, offset, bytes
  kReplay = 3,    // value: the wanted output; amount: cost in ns
  kSearch = 4,    // bytes: wanted; amount: time in ns; value: blocks in the map
  kStep = 5,      // value: number of the step
  kOperator = 6,  // an operator the program asked for; amount: cost in ns
  kRoot = 7,      // value became a root (offset, bytes)
  kHandOver = 8,  // the block at offset now holds `value`
};

struct Event {
  int64_t offset;
  int64_t bytes;
  int64_t clock;  // ns of operator cost since the start
  int64_t amount;
  int64_t value;  // serial number of the value
  int32_t op;     // the operator that was running, by the host's number
  uint8_t kind;
  uint8_t detail;
  uint16_t unused;
};
static_assert(sizeof(Event) == 48, "the log is read by Python as a structured array");

class EventLog {
 public:
  bool enabled = false;
  std::vector<Event> events;

  void emit(EventKind kind, int64_t value, Bytes offset, Bytes bytes, int64_t amount,
            uint8_t detail, double clock, int32_t op) {
    if (__builtin_expect(!enabled, 1)) return;
    events.push_back({offset, bytes, static_cast<int64_t>(clock), amount, value, op,
                      static_cast<uint8_t>(kind), detail, 0});
  }
};

}  // namespace coop
