// Quiet steps: what is expected to fit gets no recipes (decision 0006). If it does not fit, what
// was made so far may leave all the same: its bytes are saved.
#pragma once

#include "core/engine/restorer.h"
#include "core/space/space.h"

namespace coop {

class QuietSteps {
 public:
  QuietSteps(const Config& config, Space& space, Restorer& restorer, Journal& journal)
      : space_(space),
        restorer_(restorer),
        journal_(journal),
        enabled_(config.quiet_after > 0),
        quiet_after_(config.quiet_after) {}

  // The last steps needed no search, so this one is expected to need none.
  bool is_quiet() const { return enabled_ && steps_without_search_ >= quiet_after_; }
  void on_step() { ++steps_without_search_; }
  // Something has to be evicted: what was made without a recipe may leave from now on.
  void on_search();
  // Everything has to leave.
  void end();

  // A quiet operator made it. The step may not be quiet any more: the operator itself did not fit.
  void add(Value* value);
  // Lets it leave, if it was made without a recipe in this step or the one before: what has
  // survived a whole step is a root (Rule 11).
  void let_leave(Value* value) {
    if (value->made_quietly && value->step + 1 >= journal_.step) {
      restorer_.let_leave_by_saving(value);
    }
  }

 private:
  Space& space_;
  Restorer& restorer_;
  Journal& journal_;
  const bool enabled_;
  int64_t steps_without_search_ = 0;  // in a row; -1 in one with a search
  int64_t quiet_after_;               // so many
};

}  // namespace coop
