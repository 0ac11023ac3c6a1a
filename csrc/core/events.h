// A compact binary log of what the core did. Off by default; when off, each emit() is one branch.
// Reports are drawn from it, so a log that is on knows every block that is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/types.h"

namespace coop {

enum class EventKind : uint8_t {
  kAllocate = 0,  // value, offset, bytes; amount: bytes asked for; detail: the side it belongs
                  // to (0 left, 1 right), 2 small, 3 held before the log was turned on
  kFree = 1,      // value, offset, bytes
  kEvict = 2,     // value, offset, bytes
  kReplay = 3,    // value: the wanted output; amount: cost in ns; op: the one that ran again
  kSearch = 4,    // bytes: wanted; amount: time in ns; value: blocks in the map
  kStep = 5,      // value: number of the step
  kOperator = 6,  // an operator the program asked for; amount: cost in ns
  kRoot = 7,      // value became a root (offset, bytes)
  kHandOver = 8,  // the block at offset now holds `value`
  kRecipe = 9,    // value can be recomputed from now on (offset, bytes); amount: cost in ns
  kKeep = 10,     // value (offset, bytes); amount: index of the reason in EventLog::reasons
  kUnkeep = 11,   // value (offset, bytes)
  kSave = 12,     // value (offset, bytes): copied to main memory; amount: time waited in ns
  kLoad = 13,     // value (bytes): copied back; amount: time waited in ns
  kUnsave = 14,   // value (bytes): its copy in main memory is gone
};

struct Event {
  int64_t offset;
  int64_t bytes;
  int64_t clock;  // ns of operator cost since the start
  int64_t amount;
  int64_t value;  // serial number of the value
  int32_t op;     // the operator that was running (in a replay, again), by the host's number
  uint8_t kind;
  uint8_t detail;
  uint16_t source;  // who asked for that operator, by the host's number; 0: not known
};
static_assert(sizeof(Event) == 48, "the log is read by Python as a structured array");

class EventLog {
 public:
  bool enabled = false;
  size_t limit = std::numeric_limits<size_t>::max();  // what comes after is counted, not kept
  int64_t num_dropped = 0;
  std::vector<Event> events;
  std::vector<const char*> reasons;  // why values are kept

  void emit(EventKind kind, int64_t value, Bytes offset, Bytes bytes, int64_t amount,
            uint8_t detail, double clock, Origin origin) {
    if (__builtin_expect(!enabled, 1)) return;
    if (events.size() >= limit) {
      ++num_dropped;
      return;
    }
    events.push_back({offset, bytes, static_cast<int64_t>(clock), amount, value, origin.op,
                      static_cast<uint8_t>(kind), detail, origin.source});
  }

  int64_t reason_index(const char* reason) {
    for (size_t i = 0; i < reasons.size(); ++i) {
      if (reasons[i] == reason) return static_cast<int64_t>(i);
    }
    reasons.push_back(reason);
    return static_cast<int64_t>(reasons.size()) - 1;
  }
};

}  // namespace coop
