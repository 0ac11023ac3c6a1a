// The adapter: makes the core's decisions happen to torch storages.
//
// Two locks: see Note [Lock order]. `mutex_` guards the core and is held for moments, never while
// an operator runs. `materializer_` is held by the thread that replays, for as long as it takes, so
// that two threads never replay at once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/core.h"
#include "torch/cost.h"
#include "torch/frozen_call.h"
#include "torch/invocation.h"
#include "torch/locks.h"
#include "torch/memory.h"
#include "torch/op_info.h"
#include "torch/recorder.h"

namespace coop {

// An allocation that did not fit, on its way to intercept() or replay().
class BudgetExceeded {
 public:
  explicit BudgetExceeded(const OutOfBudget& cause)
      : shortage(cause.shortage), replaying(cause.replaying) {}
  Shortage shortage;
  std::string replaying;
};

// The same through torch's own code, as an out-of-memory error.
class BudgetOutOfMemory final : public c10::OutOfMemoryError, public BudgetExceeded {
 public:
  explicit BudgetOutOfMemory(const OutOfBudget& cause);
};

// And as one that torch's code lets pass. After an out-of-memory error the callers of cuDNN go on
// with another algorithm, whose bits differ, and remember it for the shape.
class BudgetError final : public c10::Error, public BudgetExceeded {
 public:
  explicit BudgetError(const OutOfBudget& cause);
};

// The program was interrupted (a signal's handler raised an exception) while it recomputed. It is
// also the exception that Python raises.
class Interruption {};

struct EngineConfig {
  Config core;
  DeviceProfile profile;
  bool measure = false;   // refine costs by measured time
  bool paranoid = false;  // evict all that can be after every operator (for tests)
};

// One tensor among the arguments of the running operator. Small: an optimizer's operator has
// thousands.
struct TensorArgument {
  c10::TensorImpl* tensor = nullptr;  // null: undefined, or not understood
  c10::StorageImpl* impl = nullptr;
  Storage* storage = nullptr;  // null: external
  Value* value = nullptr;      // its content when the operator began; the storage may die meanwhile
  size_t storage_bytes = 0;    // before the operator ran: it may resize
  size_t end_bytes = 0;        // where its last element ends in its storage
  int32_t argument = 0;
  int32_t list_index = -1;  // in a list of tensors; -1: the argument itself
  int32_t before = -1;      // index into Call::before; -1: the operator changes no geometry
  bool dense = false;       // every element has bytes of its own, with none between them
  bool written = false;
  bool parameter = false;  // a leaf with a gradient: what is written to it stays (Rule 11)
  bool scalar = false;     // one element at most
  bool shared = false;     // others may write its memory unseen
};

class Engine;
struct Hold;

// Memory of another device's engine that an operator uses: it stays until that ends.
struct Loan {
  Engine* owner;
  Operation operation;
};

// Everything about one running operator. One per thread and depth, reused.
struct Call {
  const OpInfo* info = nullptr;
  std::vector<TensorArgument> tensors;
  std::vector<at::Tensor> parts;     // what those are made of that are not understood
  std::vector<FrozenTensor> before;  // those that it may resize, as they were
  Dimensions before_dimensions;
  std::vector<Storage*> storages;  // inputs in the arena
  Operation operation;
  enum class State : uint8_t { kNone, kBegun, kRan } state = State::kNone;
  bool traced = false;  // the recorder knows that it has begun
  std::vector<Loan> loans;
  bool records = true;     // a record is possible
  bool understood = true;  // all arguments can be frozen
  bool fake = false;       // they have no bytes, and Python runs it
  bool repeatable = true;  // when it does not fit, it can be tried again
  const char* refusal = nullptr;
  RngState rng;
  Side side = Side::kRight;
  int64_t begin_serial = 0;
  uint16_t source = 0;  // see source.h
  double bytes_moved = 0;
  bool half = false;
  Cost measured = 0;
  std::vector<Storage*> fresh;
  std::vector<Value*> inputs;
  Bytes fixed_bytes = 0;  // of what it was given, and could be evicted before

  // Whether the operator writes all `bytes` of the tensor's storage, as far as geometry tells.
  bool covers(const TensorArgument& tensor, Bytes bytes) const;
  void clear();
};

class Engine final : public Host, public std::enable_shared_from_this<Engine> {
 public:
  Engine(const EngineConfig& config, std::unique_ptr<Memory> memory);
  ~Engine() override;

  // --- the way of an operator ------------------------------------------------------------------
  void intercept(const OpInfo& info, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 Invocation& invocation);
  // The same for tensors without bytes: Python modes come before our dispatch key, so Python tells
  // us of the operator, and runs it.
  void intercept_fake(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                      const std::function<void(torch::jit::Stack*)>& run);

  // --- the allocator
  // ------------------------------------------------------------------------------
  c10::DataPtr allocate(Bytes bytes);         // throws a BudgetExceeded
  static void delete_storage(void* context);  // a Storage
  static void delete_address(void* context);  // the address of the content, behind a header
  // Frees what was allocated here by its address alone. False: it is not an arena's.
  static bool delete_raw(void* address);
  // The storage behind a StorageImpl that this engine owns, or null. Under the lock: another thread
  // may evict or move its bytes at any time, and with them what leads from the one to the other.
  Storage* find(c10::StorageImpl* impl) const;

  // --- Host -----------------------------------------------------------------------------------
  void release(Storage& storage) override;
  void restore(Storage& storage) override;
  void copy(Value& to, const Value& from, Bytes bytes) override;
  void move(Value& value, Bytes from) override;
  bool may_move() const override { return memory_->on_main_stream(); }
  bool may_move_gradients() const override;
  bool may_retry() const override;
  bool is_replaying() const override;
  SavedBytes* new_saved_bytes(const Value& value) override;

  // --- for recipes ----------------------------------------------------------------------------
  void replay(FrozenCall& record, Storage** outputs);
  void retire(FrozenCall* record) { trash_.push_back(record); }
  void save(SavedContent& saved, const Value& value);
  void replay(SavedContent& saved, Storage** outputs);

  // --- what a user may ask ---------------------------------------------------------------------
  void materialize(c10::StorageImpl* impl);
  // The same, and it stays so until take_back(). For another engine's operator.
  void lend(c10::ArrayRef<c10::StorageImpl*> impls, Operation* operation);
  void take_back(Operation* operation);
  bool evict(c10::StorageImpl* impl);
  void evict_all();
  void pin(c10::StorageImpl* impl, const char* reason, bool for_good);
  // For good, as it is, resident or not; under the lock.
  void pin(Storage* storage, const char* reason) {
    if (recorder_ != nullptr) recorder_->pin(storage);
    core_.keep(storage, reason, /*for_good=*/true);
  }
  // What coop.pin did. What is pinned because others may use its memory stays so.
  void unpin(c10::StorageImpl* impl);
  // Memory that others share from now on (a NumPy array) is pinned, and what reads it too (Rule 9).
  void expose(c10::StorageImpl* impl);
  // Its bytes are about to be written, or its memory replaced, without an operator (Rule 6).
  void before_unseen_write(c10::StorageImpl* impl);
  void begin_step();
  void end_step(bool boundary);
  Stats stats();
  // Operators whose results are pinned because they are not replayed (Rule 9), with the reason.
  std::map<std::string, std::string> pinned_operators();
  Shortage shortage(Bytes bytes);
  // Turned on, the log starts anew, and operators know the lines that asked for them.
  void log_events(bool on, size_t limit);
  // Restores every evicted tensor and forgets all records; the arena lives on until its last tensor
  // is gone. Returns a line for every tensor that could not be restored.
  std::vector<std::string> close();

  // A trace of what the core is told from now on, or until the end (docs/trace-format.md).
  void start_recording(const Recorder::Options& options);
  std::string stop_recording();
  Bytes header_bytes() const { return header_bytes_; }

  const EngineConfig& config() const { return config_; }
  Core& core() { return core_; }
  Memory& memory() { return *memory_; }
  void lock_for_fork() { mutex_.lock_for_fork(); }
  void unlock_after_fork() { mutex_.unlock_after_fork(); }

 private:
  struct External {
    Storage* storage;
    c10::Storage keep_alive;  // a root that a live record needs keeps its bytes (Rule 3)
  };

  // The five steps (intercept.cc, record.cc).
  void gather(Call& call, const Invocation& invocation);
  void begin(Call& call);
  class CallScope;
  void run(Call& call, c10::DispatchKeySet keys, Invocation& invocation);
  bool make_room(Call& call, Invocation& invocation, Bytes wanted, int* attempt);
  void record(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              const Invocation& invocation);
  void run_on_storages(const OpInfo& info, c10::DispatchKeySet keys, Invocation& invocation);
  void add_tensor(Call& call, const at::Tensor& tensor, int32_t argument, int32_t list_index,
                  bool written);
  void find_storages(Call& call);
  void check(Call& call, const TensorArgument& entry) const;
  static void borrow(Call& call, const TensorArgument& entry, Engine* owner);
  bool reads_what_is_gone(const Call& call);
  void collect_fresh(Call& call, const Invocation& invocation);
  FrozenCall* freeze(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     const Invocation& invocation);
  bool records_sources() const { return records_sources_.load(std::memory_order_relaxed); }
  bool is_optimizing() const;
  void root_gradient(const at::Tensor& leaf, const Invocation& invocation);

  Storage* external(c10::StorageImpl* impl);
  void sweep_externals();
  bool is_shared(c10::StorageImpl* impl) const;
  static bool is_numpys(c10::StorageImpl& impl);
  Storage* look_up(c10::StorageImpl* impl) const;
  void* address(const Value& value) const;
  c10::DataPtr fresh_ptr(Storage& storage) const;
  c10::DataPtr data_ptr(Storage& storage) const;
  static void set_handle(Storage* storage, c10::StorageImpl* impl);
  static void drop_handle(Storage* storage);
  static c10::intrusive_ptr<c10::StorageImpl> hold(const Storage& storage);
  void make_simple(Storage& storage);
  template <typename F>
  void exchange(const Storage& storage, F&& f);
  void drop_count();
  void storage_died(Storage* storage);
  Bytes content_bytes(const Storage& storage) const { return storage.bytes - header_bytes_; }
  c10::Storage view_of(void* address, Bytes bytes, c10::Device device) const;
  // Not worth two locks for one record.
  bool is_trash_full() const { return trash_.size() >= 64; }
  void empty_trash();
  bool move_outside(Storage* storage);
  std::vector<Storage*> find_loose(const Call& call) const;
  std::string pinned_warning(const OpInfo& info, const char* refusal, Bytes bytes);
  void attend();
  void warn_if_slow();

  EngineConfig config_;
  std::unique_ptr<Memory> memory_;
  const Bytes header_bytes_;
  friend class EngineLock;
  EngineMutex mutex_;
  MaterializerMutex materializer_;
  Garbage garbage_;
  RecordPool records_;  // outlives those that the core has
  Core core_;
  FlagsReader flags_;
  std::vector<FrozenCall*> trash_;
  std::vector<FrozenCall*> spare_trash_;  // empty: its memory is the next trash's
  std::unordered_map<c10::StorageImpl*, External> externals_;
  size_t sweep_at_ = 64;
  bool has_shared_externals_ = false;                // whether any was exposed
  std::unordered_map<int32_t, const char*> pinned_;  // by OpInfo::id
  std::unordered_set<int32_t> warned_;
  std::atomic<bool> in_step_{false};
  std::atomic<bool> records_sources_{false};
  // With one for the session: whoever takes the last one lets go of the engine.
  std::atomic<int64_t> num_storages_{1};
  std::atomic<bool> closed_{false};
  std::unique_ptr<Recorder> recorder_;  // null: nothing is recorded
};

// The engine whose arena takes the allocations of a device, or null.
Engine* active_engine(c10::Device device);
void set_active_engine(c10::Device device, std::shared_ptr<Engine> engine);
// Those of the GPUs that were used.
std::vector<std::shared_ptr<Engine>> cuda_engines();
// Whether the address is any engine's.
bool is_in_an_arena(const void* address);
// So that a child gets no lock that somebody holds: all of them are this thread's meanwhile.
void before_fork();
void after_fork();
// Lets go of an engine whose session is over, and whose last tensor is gone.
void forget_engine(const Engine* engine);
// The engine for an operator.
Engine* active_engine(const Invocation& invocation);

// What runs on this thread. In one piece: every operator looks at it.
struct Running {
  // Which side the allocations of the operator go to.
  Side side = Side::kLeft;
  // Whether the operator is tried again when one of them does not fit.
  bool repeatable = false;
  // Whether it is a replay.
  bool replaying = false;
  // How many operators and replays run, one inside the other.
  int depth = 0;
  // The operator, for events.
  Origin origin;
  // Allocations that failed so far. Some libraries catch the error and go on with another
  // algorithm, whose results differ in their last bits.
  int64_t failed_allocations = 0;
  // What operators make is held too (above.h); null: it is not.
  Hold* hold = nullptr;
};
Running& running();
// The last of them.
Shortage& last_shortage();

// Raises coop.OutOfBudgetError in Python.
[[noreturn]] void throw_out_of_budget(const std::string& op, const std::string& replaying,
                                      const Shortage& shortage);

// Runs the handlers of signals that have come, which may throw an Interruption. On another thread
// than the main one it does nothing.
void run_signal_handlers();
// Warns in Python of a step that recomputes for longer than a plain step takes.
void warn_of_slow_step(const Stats& stats, Cost plain, Cost replay, c10::Device device);

// Turns interception on or off for the current thread (and the autograd threads it starts).
void set_thread_enabled(bool enabled);
bool is_thread_enabled();

}  // namespace coop
