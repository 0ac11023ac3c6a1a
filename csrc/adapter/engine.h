// The adapter: one budget of one device, under torch. It owns these objects, and is what users ask;
// call/handler.h is what operators come to.
//
// Two locks: see Note [Lock order]. The mutex guards the core, and all objects here, and is held
// for moments, never while an operator runs. The materializer is held by the thread that replays,
// for as long as it takes, so that two threads never replay at once.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "adapter/call/cost.h"
#include "adapter/call/in_flight.h"
#include "adapter/call/measured_costs.h"
#include "adapter/call/recipe_pool.h"
#include "adapter/dispatch/flags.h"
#include "adapter/host.h"
#include "adapter/kept_operators.h"
#include "adapter/locks.h"
#include "adapter/storage/externals.h"
#include "adapter/storage/host_memory.h"
#include "adapter/storage/memory.h"
#include "adapter/storage/storages.h"
#include "adapter/trace/recorder.h"
#include "core/core.h"
#include "core/simulate/json_lines.h"

namespace coop {

struct EngineConfig {
  Config core;
  DeviceProfile profile;
  bool measure = false;   // costs are measured: see MeasuredCosts
  bool paranoid = false;  // evict all that can be after every operator (for tests)
  std::shared_ptr<HostMemory> host_memory = nullptr;  // for the copies of core.host_bytes
};

class Engine final : public std::enable_shared_from_this<Engine> {
 public:
  Engine(const EngineConfig& config, std::unique_ptr<Memory> memory);
  ~Engine();

  // --- what a user may ask. These take the lock
  void materialize(c10::StorageImpl* impl);
  // The same, and it stays so until take_back(): see Loans.
  void lend(c10::ArrayRef<c10::StorageImpl*> impls, Operation* operation);
  void take_back(Operation* operation);
  bool evict(c10::StorageImpl* impl);
  void evict_all();
  // Brings back roots, as far as there is room: a process that is forked now reads what it finds.
  void bring_back_roots();
  // Brings it back, and keeps it. `for_good`: unkeep() does not undo it.
  void keep(c10::StorageImpl* impl, const char* reason, bool for_good);
  void unkeep(c10::StorageImpl* impl);
  // Memory that others share from now on (a NumPy array) is kept, and what reads it too (Rule 9).
  void expose(c10::StorageImpl* impl);
  // Its bytes are about to be written, or its memory replaced, without an operator (Rule 6).
  void before_unseen_write(c10::StorageImpl* impl);
  // It is resized to nothing without an operator, wherever its bytes are. Unlike before a write, no
  // copy is made for whom it is recomputed from. False: it is not ours.
  bool give_back(c10::StorageImpl* impl);
  // It was resized from nothing, without an operator: whoever writes it begins.
  void undefine(c10::StorageImpl* impl);
  void begin_step();
  void end_step(bool boundary);
  Stats stats();
  Shortage shortage(Bytes bytes);
  // Operators whose results are kept because they are not replayed (Rule 9), with the reason.
  std::map<std::string, std::string> list_kept_operators();
  // Turned on, the log starts anew, and operators know the lines that asked for them.
  void log_events(bool on, size_t limit);
  // A trace of what the core is told from now on, or until the end (docs/trace-format.md).
  void start_recording(const Recorder::Options& options);
  std::string stop_recording();
  // Restores every evicted tensor and forgets all recipes; the arena lives on until its last tensor
  // is gone. Returns a line for every tensor that could not be restored.
  std::vector<std::string> close();

  // --- what its operators ask
  // A closure that an optimizer calls (LBFGS) runs with gradients on: it is not the update.
  bool is_optimizing() const;
  bool records_sources() const { return records_sources_.load(std::memory_order_relaxed); }
  // For good, as it is, resident or not; under the lock.
  void keep(Storage* storage, const char* reason);

  // --- its objects. Under the lock, but for what they say
  const EngineConfig& config() const { return config_; }
  Memory& memory() const { return *memory_; }
  EngineLocks& locks() { return locks_; }
  Core& core() { return core_; }
  const Core& core() const { return core_; }
  Storages& storages() { return storages_; }
  const Storages& storages() const { return storages_; }
  Externals& externals() { return externals_; }
  RecipePool& recipes() { return recipes_; }
  FlagsReader& flags() { return flags_; }
  KeptOperators& kept_operators() { return kept_operators_; }
  InFlight& in_flight() { return in_flight_; }
  MeasuredCosts& costs() { return costs_; }
  // Null: nothing is recorded.
  Recorder* recorder() { return recorder_.get(); }

 private:
  const EngineConfig config_;
  const std::unique_ptr<Memory> memory_;
  EngineLocks locks_;
  RecipePool recipes_;  // outlives those that the core has
  TorchHost host_;
  Storages storages_;
  Core core_;
  Externals externals_;
  FlagsReader flags_;
  KeptOperators kept_operators_;
  InFlight in_flight_;
  MeasuredCosts costs_;
  std::unique_ptr<JsonLines> trace_;  // what the recorder has told
  std::unique_ptr<Recorder> recorder_;
  std::atomic<bool> in_step_{false};
  std::atomic<bool> records_sources_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace coop
