#include "core/policy/neighbours.h"

#include <algorithm>
#include <vector>

namespace coop {

Cost exact_neighbourhood_cost(const Value* value, int64_t mark, Cost most) {
  Cost sum = value->recipe->cost;
  std::vector<Value*> walked;
  // A recipe with several evicted outputs is replayed once.
  auto is_counted = [&](const Recipe* recipe) {
    return recipe == value->recipe ||
           std::any_of(recipe->outputs.begin(), recipe->outputs.end(), [&](const Value* output) {
             return output != nullptr && output->mark == mark;
           });
  };
  auto visit = [&](Value* neighbour) {
    if (!neighbour->is_evicted() || neighbour->made_in_backward || neighbour->mark == mark) return;
    if (!is_counted(neighbour->recipe)) sum += neighbour->recipe->cost;
    neighbour->mark = mark;
    walked.push_back(neighbour);
  };
  size_t next = 0;
  for_each_source(value, visit);
  for (; next < walked.size() && sum <= most; ++next) for_each_source(walked[next], visit);
  next = walked.size();
  for_each_counted(value, visit);
  for (; next < walked.size() && sum <= most; ++next) for_each_result(walked[next], visit);
  return sum;
}

}  // namespace coop
