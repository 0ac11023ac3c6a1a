#include "adapter/call/handler.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "adapter/call/gradients.h"
#include "adapter/call/parts.h"
#include "adapter/call/running.h"
#include "adapter/engine.h"
#include "adapter/errors.h"
#include "adapter/trace/source.h"
#include "core/clock.h"

namespace coop {

namespace {

// set_ looks at the memory behind its arguments, although it neither reads nor writes it.
void run_on_storages(Engine& engine, const OpInfo& info, c10::DispatchKeySet keys,
                     Invocation& invocation) {
  std::vector<c10::StorageImpl*> impls;
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    const c10::IValue argument = invocation.argument(i);
    if (argument.isStorage()) {
      impls.push_back(argument.toStorage().unsafeGetStorageImpl());
    } else if (argument.isTensor() && argument.toTensor().has_storage()) {
      impls.push_back(argument.toTensor().storage().unsafeGetStorageImpl());
    }
  }
  Loans loans;
  try {
    engine.lend(impls, &loans.add(engine));
  } catch (const OutOfBudget& error) {
    throw_out_of_budget(info.name, error.replaying, error.shortage);
  }
  invocation.run(keys);
}

}  // namespace

void intercept(Engine& engine, const OpInfo& info, const c10::OperatorHandle& op,
               c10::DispatchKeySet keys, Invocation& invocation) {
  std::optional<Backward> backward;
  if (info.accumulates) backward = look_at_backward();
  const uint16_t source = engine.records_sources() ? current_source() : 0;
  if (!info.passes_through) {
    if (info.separable && !invocation.is_fake()) {
      const std::vector<Part> parts = find_parts(engine, info, op, invocation);
      if (!parts.empty()) return run_in_parts(engine, info, source, op, keys, invocation, parts);
    }
    try {
      Handler(engine, info, source, op, keys, invocation, backward ? &*backward : nullptr).run();
    } catch (const BudgetExceeded& error) {
      throw_out_of_budget(info.name, error.replaying, error.shortage);
    }
  } else if (info.takes_storages) {
    run_on_storages(engine, info, keys, invocation);
  } else {
    invocation.run(keys);
  }
  if (backward && backward->leaf.defined()) make_gradient_root(engine, backward->leaf, invocation);
}

Handler::Handler(Engine& engine, const OpInfo& info, uint16_t source, const c10::OperatorHandle& op,
                 c10::DispatchKeySet keys, Invocation& invocation, const Backward* backward)
    : engine_(engine), op_(op), keys_(keys), invocation_(invocation), call_(*lease_) {
  call_.info = &info;
  call_.source = source;
  call_.backward = backward;
}

Handler::~Handler() {
  if (state_ == State::kNone && in_flight_ == nullptr) return;
  const EngineLock guard(engine_);
  fix_in_flight();
  if (state_ == State::kNone) return;
  drop_timing();
  Recorder* recorder = engine_.recorder();
  if (traced_ && recorder != nullptr) recorder->abort();
  if (state_ == State::kBegun) {
    engine_.core().abort(call_.operation);
  } else {
    // What it wrote stays written.
    engine_.core().commit(call_.operation, nullptr, nullptr, 0, nullptr, 0, 0);
  }
}

void Handler::run() {
  look();
  if (invocation_.wants_to_let_go()) let_go();
  for (int attempt = 0;;) {
    try {
      bring_back();
      run_operator();
      break;
    } catch (const BudgetExceeded& error) {
      if (!make_room(error.shortage.wanted, &attempt) && !let_go()) throw;
    }
  }
  bool clean_up = false;
  bool sweep = false;
  {
    const EngineLock guard(engine_);
    make_recipe();
    commit();
    if (in_flight_ != nullptr && InFlight::is_coalescing()) fix_in_flight();
    sweep = engine_.externals().is_sweep_due();
    clean_up = engine_.recipes().is_full();
  }
  if (in_flight_ != nullptr) leave_in_flight();
  if (clean_up) engine_.recipes().clean_up();
  if (sweep) engine_.externals().sweep();
  // Unlocked: whoever shows it may be Python.
  if (!warning_.empty()) TORCH_WARN(warning_);
}

// --- 3. run

void Handler::run_operator() {
  std::optional<DrawLock> draws;
  if (call_.info->seeded && !call_.operands.fake) capture_generator(&draws);
  repeatable_ = is_repeatable();
  const bool measures = call_.info->region_flops < 0;
  Running& thread = running();
  const int64_t failures = thread.failed_allocations;
  try {
    const c10::impl::ExcludeDispatchKeyGuard nested(kOurKey);
    const RunScope scope(thread, call_.side, repeatable_);
    const int64_t begin_ns = measures ? now_ns() : 0;
    invocation_.run(keys_);
    if (rng_.is_set()) rng_.ran();
    if (call_.info->region) drop_unused_generator();
    if (measures) measured_ = static_cast<Cost>(now_ns() - begin_ns);
    state_ = State::kRan;
    if (went_another_way(thread, failures)) {
      repeatable_ = false;  // it may go that way at once, and not be seen
      invocation_.reset();
      throw BudgetExceeded(OutOfBudget(last_shortage()));
    }
  } catch (const BudgetExceeded&) {
    take_back();
    throw;
  } catch (...) {
    give_up();
    throw;
  }
}

void Handler::capture_generator(std::optional<DrawLock>* draws) {
  const OpInfo& info = *call_.info;
  c10::IValue argument;
  if (info.generator_argument >= 0) argument = invocation_.argument(info.generator_argument);
  const at::Generator generator =
      argument.isNone() ? default_generator(engine_.memory().device()) : argument.toGenerator();
  // One of Python's is made of operators that draw.
  if (info.builtin) draws->emplace(generator);
  rng_ = RngState(generator);
  if (info.region && !generator.device().is_cpu()) {
    main_rng_ = RngState(default_generator(c10::kCPU));
  }
}

// A compiled graph may draw or not, and from a generator that is not its device's.
void Handler::drop_unused_generator() {
  if (!rng_.has_drawn()) rng_ = RngState();
  if (main_rng_.is_set()) {
    main_rng_.ran();
    if (main_rng_.has_drawn()) call_.refusal = "it draws from the generator of main memory";
  }
}

// What may have been half written cannot be brought back, if it is a root.
bool Handler::is_repeatable() const {
  if (call_.refusal != nullptr || lets_go_) return false;
  for (const Write& write : call_.operation.writes) {
    if (write.kind == Write::Kind::kRoot) return false;
  }
  return true;
}

// It did not fit: everything is as it was before.
void Handler::take_back() {
  {
    const EngineLock guard(engine_);
    drop_timing();
    if (Recorder* recorder = engine_.recorder()) recorder->abort();
    traced_ = false;
    // It has given an argument other memory already (`out=` of another size).
    for (const Write& write : call_.operation.writes) repeatable_ &= !write.storage->dead;
    fix_in_flight();
    engine_.core().abort(call_.operation);
    state_ = State::kNone;
  }
  call_.operands.restore_sizes();
  if (rng_.is_set()) rng_.restore();
  if (main_rng_.is_set()) main_rng_.restore();
}

// As without a budget: what the operator had written by then stays written.
void Handler::give_up() {
  const EngineLock guard(engine_);
  fix_in_flight();
  drop_timing();
  if (Recorder* recorder = engine_.recorder()) recorder->commit(call_, 0, 0, /*replayable=*/false);
  traced_ = false;
  engine_.core().commit(call_.operation, nullptr, nullptr, 0, nullptr, 0, 0);
  state_ = State::kNone;
}

// There is no telling when a collective will be done: what it uses stays for good (Rule 9). Under
// the lock.
void Handler::fix_in_flight() {
  if (in_flight_ == nullptr) return;
  fix(find_loose());
  engine_.core().let_go(*in_flight_);
  in_flight_.reset();
}

// The collective has returned, and is done when its Work is. With none it has run in the order of
// the current stream, as any operator.
void Handler::leave_in_flight() {
  const c10::IValue result = invocation_.last_result();
  c10::intrusive_ptr<c10d::Work> work;
  if (result.isObject()) work = result.toCustomClass<c10d::Work>();
  if (work == nullptr || work->isCompleted()) {
    const EngineLock guard(engine_);
    engine_.core().let_go(*in_flight_);
  } else if (engine_.in_flight().understands(*work, *call_.info->collective)) {
    engine_.in_flight().add(std::move(*in_flight_), std::move(work));
  } else {
    const EngineLock guard(engine_);
    fix_in_flight();
  }
  in_flight_.reset();
}

// The last resort.
bool Handler::make_room(Bytes wanted, int* attempt) {
  if (!repeatable_) return false;
  const std::vector<Storage*>& storages = call_.operands.storages;
  {
    const ReplayLock guard(engine_.locks());
    if (!engine_.core().make_room(storages.data(), storages.size(), wanted, attempt)) return false;
  }
  invocation_.reset();
  return true;
}

// After that: a compiled graph is given inputs that die as it uses them. Then it has what it would
// have without a budget, but cannot be tried again.
bool Handler::let_go() {
  if (!repeatable_ || lets_go_) return false;
  const std::vector<TensorArgument>& tensors = call_.operands.tensors;
  lets_go_ = invocation_.let_go([&](size_t index) { return tensors[index].storage != nullptr; });
  if (lets_go_) invocation_.reset();
  return lets_go_;
}

}  // namespace coop
