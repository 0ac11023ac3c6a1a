// An operator that takes all tensors of an optimizer at once, run on slices of its lists.
//
// Note [Parts]
// What an operator uses has to be resident together, so one update of all parameters needs all of
// them, their gradients and their state in the budget. Where roots may leave by a copy, an operator
// that is separable (dispatch/separable.h) and uses more than a quarter of the budget is run as
// several: each is an operator like any other, to the core, to schedules and to traces.
//
// The bits are those of one call as long as torch goes the same way with a slice as with the whole:
// its foreach kernels are for lists that are alike in every way, and one tensor that is not sends
// all of them another way. So only lists that are alike are sliced. What an index writes must be
// nobody else's.
//
// When a part does not fit it is halved. The part that needs most comes first, so that what cannot
// fit fails before anything was written; should a later one fail all the same, the error says how
// many tensors were updated by then, since nothing takes that back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "adapter/call/invocation.h"
#include "adapter/dispatch/op_info.h"
#include "core/types.h"

namespace coop {

class Engine;

// Of the indices of its lists.
struct Part {
  int64_t begin;
  int64_t end;
};

// How many bytes of operands an operator should have, of which one has so many; 0: any.
Bytes part_bytes(const Engine& engine, Bytes operand_bytes);
// In the order in which they are to be run. Empty: it is run at once.
std::vector<Part> find_parts(const Engine& engine, const OpInfo& info,
                             const c10::OperatorHandle& op, const Invocation& invocation);
void run_in_parts(Engine& engine, const OpInfo& info, uint16_t source,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, Invocation& invocation,
                  const std::vector<Part>& parts);

}  // namespace coop
