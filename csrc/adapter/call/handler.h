// The way of an operator through the engine.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/call/call.h"
#include "adapter/call/invocation.h"
#include "adapter/call/loans.h"
#include "adapter/call/rng.h"

namespace coop {

class Engine;

// What the dispatcher hands to us.
void intercept(Engine& engine, const OpInfo& info, const c10::OperatorHandle& op,
               c10::DispatchKeySet keys, Invocation& invocation);

// One operator, from its arguments to its recipe. Whatever fails on the way, what it has locked and
// is about to write is let go of when this ends.
class Handler {
 public:
  Handler(Engine& engine, const OpInfo& info, uint16_t source, const c10::OperatorHandle& op,
          c10::DispatchKeySet keys, Invocation& invocation, const Backward* backward);
  ~Handler();
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

  // The five steps. Throws BudgetExceeded.
  void run();

 private:
  // 1. Who are the operands, and can the operator be replayed? (look.cc)
  void look();
  void find_storages();
  void check(const TensorArgument& tensor);
  void borrow(const TensorArgument& tensor, Engine& owner);
  bool brings_in_an_input() const;

  // 2. Bring back what is evicted of them, lock them, and say what will be written. (bring_back.cc)
  void bring_back();
  void plan_writes();
  void lock_operands();
  std::vector<Storage*> find_loose() const;
  void fix(const std::vector<Storage*>& storages);

  // 3. Run it. What does not fit is taken back, and tried again where there is hope.
  void run_operator();
  void capture_generator(std::optional<DrawLock>* draws);
  void drop_unused_generator();
  bool is_repeatable() const;
  void take_back();
  void give_up();
  bool make_room(Bytes wanted, int* attempt);
  void fix_in_flight();
  void leave_in_flight();
  bool let_go();

  // 4. What it made and wrote, as a recipe where there can be one. (results.cc)
  void make_recipe();
  void collect_fresh();
  void find_cost();
  void drop_timing();
  bool can_have_outputs() const;
  bool reads_what_is_gone() const;

  // 5. Tell the core.
  void commit();
  void keep_results();
  void hold_results(Loans& loans);

  Engine& engine_;
  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  Invocation& invocation_;
  const CallLease lease_;
  Call& call_;
  Loans loans_;                           // what it uses of other devices
  std::unique_ptr<Operation> in_flight_;  // what a collective uses until it is done

  enum class State : uint8_t { kNone, kBegun, kRan } state_ = State::kNone;
  bool traced_ = false;       // the recorder knows that it has begun
  bool wants_recipe_ = true;  // there is something to freeze
  bool lets_go_ = false;      // of its inputs, while it runs
  bool repeatable_ = true;    // when it does not fit, it can be tried again
  int64_t begin_serial_ = 0;
  RngState rng_;
  RngState main_rng_;      // that of main memory, of a compiled graph on another device
  Cost measured_ = 0;      // of a graph of which nothing else is known
  int32_t timing_ = -1;    // see MeasuredCosts
  Bytes fixed_bytes_ = 0;  // of what it was given, and could be evicted before
  // Of step 4.
  Cost cost_ = 0;
  double flops_ = 0;
  bool quiet_ = false;       // it could get a recipe, but does not (see QuietSteps)
  bool recordable_ = false;  // a recipe would have outputs
  bool replayable_ = false;
  FrozenCall* recipe_ = nullptr;
  std::string warning_;
};

}  // namespace coop
