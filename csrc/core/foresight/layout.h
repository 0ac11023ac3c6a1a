// What lies in memory between two steps, and how it is put together before a
// schedule is followed for the first time: what stays between the ends of the
// arena would be in every schedule's way.
//
// Note [Moving roots]
// First steps are decided online, and leave parameters and optimizer state
// where there was room just then. Nobody moves them later: a thread that is not
// inside the budget may be reading them. But not while an optimizer runs that
// writes them: such a thread would read bytes that are half written in plain
// torch too. So what an optimizer has written may be moved when it has ended,
// in its own hook, unless somebody has its address. That is done once for a
// schedule, which is made for what it leaves: gradients wait in the middle, and
// each root is moved towards the end of the arena on whose side it lies.
#pragma once

#include <vector>

#include "core/foresight/step_log.h"
#include "core/foresight/step_program.h"
#include "core/space/space.h"
#include "core/types.h"

namespace coop {

// Room that is not to be had until what lies there dies.
struct Obstacle {
  Bytes begin;
  Bytes end;
  StepProgram::Death death;

  bool operator==(const Obstacle&) const = default;
};

// Where a block goes.
struct Relocation {
  Bytes from;
  Bytes to;
};

struct Layout {
  std::vector<Relocation> moves;    // in this order each has room
  std::vector<Obstacle> obstacles;  // when that is done
};

// It is gone before the first operator.
inline bool is_at_once(const StepProgram::Death& death) {
  return death.op == 0 && death.freed == 0;
}

// A death of a value of so many bytes, which the list has no more; else one
// that never happens. A value that outlives its step lives on until its
// successor is made, which is about when its predecessor died: one of the same
// size.
StepProgram::Death take_death(std::vector<StepProgram::Death>& deaths, Bytes bytes);

// At the end of the step that the program is of. `may_move`: gradients, and
// roots that the optimizer has written.
// The roots are left out.
Layout find_layout(const StepProgram& program, const std::vector<KnownRoot>& roots,
                   const Space& space, int64_t step, bool may_move);

}  // namespace coop
