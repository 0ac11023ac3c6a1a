// The neighbours of a value in the graph, as scores see them.
#pragma once

#include <limits>

#include "core/model/value.h"

namespace coop {

// A root is never recomputed, so it is nobody's neighbour.
template <typename F>
void for_each_source(const Value* value, F&& f) {
  if (value->recipe == nullptr) return;
  for (Edge& edge : value->recipe->inputs) {
    if (!edge.value->is_root()) f(edge.value);
  }
}

template <typename F>
void for_each_result(const Value* value, F&& f) {
  for (Edge* edge = value->users; edge != nullptr; edge = edge->next) {
    for (Value* output : edge->recipe->outputs) {
      if (output != nullptr) f(output);
    }
  }
}

// Calls f(neighbour) for the values from which `value` is recomputed, and for those that are
// recomputed from it.
template <typename F>
void for_each_neighbour(const Value* value, F&& f) {
  for_each_source(value, f);
  for_each_result(value, f);
}

// A value that is dead and unneeded is recomputed only when something that was made from it has
// been evicted, and what is more expensive per byte than `source` will stay when that one goes.
inline bool is_left_out(const Value* value, const Value* source) {
  constexpr double kMoreExpensive = 2;
  return value->dead_and_unneeded &&
         value->cost * static_cast<double>(source->bytes) >
             kMoreExpensive * source->cost * static_cast<double>(value->bytes);
}

// Of more than so many that are left out one will be wanted: they count.
inline constexpr int kFewLeftOut = 8;

// Calls f(neighbour) for those that a score counts. How many are left out, or would be.
template <typename F>
int for_each_counted(const Value* value, F&& f) {
  for_each_source(value, f);
  int num_left_out = 0;
  for_each_result(value, [&](Value* result) {
    if (is_left_out(result, value)) {
      ++num_left_out;
    } else {
      f(result);
    }
  });
  if (num_left_out > kFewLeftOut) {
    for_each_result(value, [&](Value* result) {
      if (is_left_out(result, value)) f(result);
    });
  }
  return num_left_out;
}

// DTR's e*, by walking the graph: the cost of the value, of its evicted
// ancestors through evicted ancestors, and of its evicted descendants likewise; but for values that
// a backward pass made, and for what a score does not count. `mark` is a new one. More than `most`
// is as good as any more.
Cost exact_neighbourhood_cost(const Value* value, int64_t mark,
                              Cost most = std::numeric_limits<Cost>::infinity());

}  // namespace coop
