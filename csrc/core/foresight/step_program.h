// What one step did, by numbers: operators in order, what they read and made, when things died.
// It holds what the program asked for, whatever had to be evicted or recomputed for it.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/types.h"

namespace coop {

struct StepProgram {
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  struct Operator {
    Cost cost = 0;
    Bytes temporary = 0;       // the most bytes besides those of its results
    int32_t first_use = 0;     // in `uses`, up to the next operator's
    int32_t first_source = 0;  // in `sources`
    int32_t first_item = 0;    // in `items`: those that it made
  };

  // A value that the step made, by order of creation. It lies in memory in operators [born, end).
  // After those come roots: values that were there before, will be there in the next step, and may
  // leave by a copy. What holds of them at the end of a step holds at the beginning of the next.
  struct Item {
    Bytes bytes = 0;  // 0: it takes none of the arena's own
    int32_t born = 0;
    int32_t end = kNever;      // the operator before which its storage died, or was written again
    int32_t fixed = kNever;    // the operator from which on it cannot leave
    int32_t maker = -1;        // the operator that can make it again; -1: none
    int32_t takes = -1;        // the version whose memory it took
    int32_t freed = -1;        // how many items there were when it died
    bool overwritten = false;  // its memory went to the next version
    bool in_backward = false;
  };

  // A value of an earlier step that died before the operator.
  struct Death {
    int32_t op;
    int32_t freed;  // how many items there were
    Bytes bytes;

    bool operator==(const Death&) const = default;
  };

  std::vector<Operator> operators;
  std::vector<Death> older_deaths;
  std::vector<Item> items;
  int32_t num_roots = 0;         // of them, the last ones
  std::vector<int32_t> uses;     // items that are in memory while it runs
  std::vector<int32_t> sources;  // items that its recipe reads
  struct RootWrite {
    int32_t op;
    int32_t item;
  };
  std::vector<RootWrite> root_writes;  // in order of operators
  Bytes base = 0;                      // held when the step began, but for roots

  int32_t size() const { return static_cast<int32_t>(operators.size()); }
  int32_t num_items() const { return static_cast<int32_t>(items.size()); }
  // Those that the step made.
  int32_t num_made() const { return num_items() - num_roots; }
  bool is_root(int32_t item) const { return item >= num_made(); }
  // Whether it may leave: it can be made again, or copied.
  bool can_leave(int32_t item) const { return items[item].maker >= 0 || is_root(item); }
  Cost cost() const {
    Cost sum = 0;
    for (const Operator& op : operators) sum += op.cost;
    return sum;
  }
  int32_t end_items(int32_t op) const {
    return op + 1 < size() ? operators[op + 1].first_item : num_made();
  }
  // Its own memory, while an operator runs.
  bool is_temporary(int32_t item) const {
    return items[item].maker < 0 && items[item].end == items[item].born;
  }
  template <typename F>
  void for_each_use(int32_t op, F&& f) const {
    for_each(uses, &Operator::first_use, op, f);
  }
  template <typename F>
  void for_each_source(int32_t op, F&& f) const {
    for_each(sources, &Operator::first_source, op, f);
  }

 private:
  template <typename F>
  void for_each(const std::vector<int32_t>& list, int32_t Operator::* first, int32_t op,
                F&& f) const {
    const size_t end = op + 1 < size() ? operators[op + 1].*first : list.size();
    for (size_t i = operators[op].*first; i < end; ++i) f(list[i]);
  }
};

}  // namespace coop
