// Where the program is (clock, step, the running operator), and what the core has done so far
// (statistics, events). Every object of the core writes to the same one.
#pragma once

#include "core/events.h"
#include "core/model/value.h"
#include "core/pace.h"
#include "core/types.h"

namespace coop {

struct Journal {
  double clock = 0;  // ns of operator cost
  Origin origin;     // what runs
  int64_t step = 0;
  // First serial number of what the running optimizer makes; 0: none runs.
  int64_t optimizer_serial = 0;
  int num_restoring = 0;  // requests to bring values back that are under way, one inside the other
  Stats stats;
  Pace pace;
  EventLog events;

  bool in_optimizer() const { return optimizer_serial > 0; }
  bool is_restoring() const { return num_restoring > 0; }

  void emit(EventKind kind, const Value* value, int64_t amount = 0, uint8_t detail = 0) {
    events.emit(kind, value->serial, value->offset, value->bytes, amount, detail, clock, origin);
  }
};

}  // namespace coop
