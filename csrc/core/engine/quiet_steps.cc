#include "core/engine/quiet_steps.h"

#include <algorithm>

namespace coop {

void QuietSteps::add(Value* value) {
  // What an optimizer makes stays (Rule 11), and small values do anyway.
  if (value->has_way_back() || !space_.has(value) || journal_.in_optimizer()) return;
  value->made_quietly = true;
  if (!is_quiet()) restorer_.let_leave_by_saving(value);
}

void QuietSteps::on_search() {
  end();
  steps_without_search_ = -1;
}

// The more often that happens, the longer it takes to be quiet again.
void QuietSteps::end() {
  constexpr int64_t kMost = 1 << 20;
  if (!is_quiet()) return;
  steps_without_search_ = -1;
  quiet_after_ = std::min(2 * quiet_after_, kMost);
  space_.for_each_block([&](const Block& block) {
    if (!block.is_free()) let_leave(block.value);
  });
}

}  // namespace coop
