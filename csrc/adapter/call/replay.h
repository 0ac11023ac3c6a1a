// Running an operator again, from its recipe.
#pragma once

#include <ATen/core/stack.h>

#include <unordered_map>
#include <vector>

#include "adapter/call/frozen_call.h"

namespace coop {

class Engine;

// One replay: takes memory for what the operator writes, thaws its arguments, runs it, and takes
// what it made out of its results. What fails leaves nothing behind.
class Replay {
 public:
  // `outputs`: see Recipe::replay.
  Replay(Engine& engine, FrozenCall& recipe, Storage** outputs);
  // Under the lock, which is given up while the operator runs.
  void run();

 private:
  void take_memory();
  Storage* memory_for(const FrozenTensor& tensor, Value* value);
  void run_unlocked(const Flags& live);
  torch::jit::Stack thaw() const;
  void take_results(const torch::jit::Stack& stack);
  void take_result(const at::Tensor& tensor);
  void free_scratch();
  void discard_outputs();

  Engine& engine_;
  FrozenCall& recipe_;
  Storage** const outputs_;
  const int64_t begin_serial_;
  std::vector<void*> addresses_;                       // by tensor; null: no memory behind it
  std::vector<Storage*> scratch_;                      // freed after the run
  std::unordered_map<const Value*, Storage*> copies_;  // one, under however many names
  size_t num_found_ = 0;                               // of the results that it made before
};

}  // namespace coop
