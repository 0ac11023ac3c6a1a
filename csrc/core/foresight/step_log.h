// Notes what a step does, as a StepProgram. It is told what the program asks for; not what replays
// do for it.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/foresight/step_program.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/space/space.h"

namespace coop {

// A root of a step, which the next ones have too.
struct KnownRoot {
  int32_t id;
  int64_t serial;
  Bytes address;  // at the end of the step; Arena::kNowhere: it was away

  bool operator==(const KnownRoot&) const = default;
};

class StepLog {
 public:
  // With roots, or without.
  StepLog(Graph& graph, const Space& space, const Journal& journal, bool has_roots)
      : graph_(graph), space_(space), journal_(journal), has_roots_(has_roots) {}
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // A new step.
  void begin();
  const StepProgram& program() const { return program_; }
  // The step is over: its program with its roots.
  StepProgram program_with_roots(std::vector<KnownRoot>* roots) const;

  void allocated(Value* value);
  // Nobody has its bytes any more.
  void ended(Value* value);
  // Its bytes went to the next version.
  void overwritten(Value* value, Value* next);
  // It cannot leave from now on.
  void fixed(const Value* value);
  // An operator ran, and used these; then what it made.
  void ran(const Recipe* recipe, const std::vector<Value*>& used, Cost cost);
  void made(Value* value, const Recipe* recipe);
  // It wrote a root, which stays the same value.
  void wrote(const Value* value);
  // Returns a number that stands for all operators of the step so far.
  uint64_t end_operator();
  // The step is over. What was allocated after its last operator (another thread's operator may be
  // running) is as if one that did nothing had made it: every item was born in some operator.
  void end();
  // The operator that allocated last did not fit, and what it made is gone: it is tried again.
  void take_back();

  // How many operators there were.
  int32_t position() const { return program_.size(); }
  int32_t num_items() const { return static_cast<int32_t>(program_.items.size()); }
  // -1: not of this step.
  int32_t item_of(const Value* value) const {
    return value->step == journal_.step ? value->item : -1;
  }
  // Null when it is gone.
  Value* value_of(int32_t item) const;

 private:
  static constexpr int32_t kEnded = -2;  // the item of an older value that is gone

  struct Reference {
    int32_t id;
    int64_t serial;
  };

  void add(Value* value);
  int32_t root_of(const Value* value);

  Graph& graph_;
  const Space& space_;
  const Journal& journal_;
  const bool has_roots_;
  // Candidates. In the program's lists they are numbered -1, -2, ... until the step is over.
  std::vector<Reference> roots_;
  std::unordered_map<int64_t, int32_t> root_numbers_;  // by serial
  StepProgram program_;
  std::vector<Reference> values_;  // by item
  StepProgram::Operator running_;
  uint64_t mark_ = 0;       // of the operators so far
  int32_t first_item_ = 0;  // of the running operator
  Bytes allocated_ = 0;     // since the last operator ended
  Bytes most_allocated_ = 0;
};

}  // namespace coop
