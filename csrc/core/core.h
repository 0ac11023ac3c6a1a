// The core: an arena of a fixed budget that evicts what does not fit and brings it back when it is
// needed. This is its face; the objects that it owns do the work (docs/architecture.md).
//
// Not thread safe: the host calls it under one lock, and may release that lock while it runs an
// operator inside Recipe::replay. Everything locked stays where it is meanwhile.
#pragma once

#include <memory>
#include <vector>

#include "core/engine/allocator.h"
#include "core/engine/collector.h"
#include "core/engine/compactor.h"
#include "core/engine/evictor.h"
#include "core/engine/faults.h"
#include "core/engine/host_copies.h"
#include "core/engine/materializer.h"
#include "core/engine/mover.h"
#include "core/engine/operation.h"
#include "core/engine/operators.h"
#include "core/engine/quiet_steps.h"
#include "core/engine/restorer.h"
#include "core/engine/steps.h"
#include "core/engine/writes.h"
#include "core/foresight/foresight.h"
#include "core/host.h"
#include "core/journal.h"
#include "core/model/graph.h"
#include "core/policy/chooser.h"
#include "core/policy/scores.h"
#include "core/space/space.h"
#include "core/types.h"

namespace coop {

class Core {
 public:
  // `policy`: one that the configuration does not name; null: the one that it names.
  Core(const Config& config, Host* host, std::unique_ptr<const Policy> policy = nullptr);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // --- memory
  // A storage with a block and no recipe yet. Evicts as the policy says; throws OutOfBudget.
  Storage* allocate(Bytes bytes, Side side);
  // Memory that is not the arena's, seen as a root: it is read by recipes and may be written.
  Storage* add_external(void* address, Bytes bytes);
  // The last tensor of the storage is gone (Rule 4). With a fence, a device may use its block until
  // it has passed that.
  void storage_died(Storage* storage, std::unique_ptr<Fence> fence = nullptr);

  // --- operators: see Operators
  void begin(Operation& operation, Storage* const* inputs, size_t num_inputs);
  void commit(Operation& operation, Recipe* recipe, Value* const* inputs, size_t num_inputs,
              Storage* const* fresh, size_t num_fresh, Cost cost);
  void abort(Operation& operation);
  // Nothing runs any more that used what the operation locked.
  void let_go(Operation& operation);
  // Whether the schedule brings anything back before the next one begins.
  bool acts_before() const { return foresight_.acts_before_operator(); }
  // Before commit() and abort(), which do it too: see Writes::resolve.
  void resolve_writes(Operation& operation) { writes_.resolve(operation.writes); }
  // The last resort, for an operator that did not fit and was aborted: see Compactor. True: it is
  // worth trying again. `attempt` counts the attempts, from 0.
  bool make_room(Storage* const* inputs, size_t num_inputs, Bytes wanted, int* attempt);
  // During Recipe::replay: see Materializer.
  Storage* take_for_write(Value* value, const Recipe& recipe);

  // --- what a user may ask
  void materialize(Storage* storage);
  bool evict(Storage* storage);  // false: it may not leave, or is in use
  void evict_all();              // everything that can be
  // `for_good`: unkeep() does not undo it.
  void keep(Storage* storage, const char* reason, bool for_good = false);
  void unkeep(Storage* storage);
  // What is about to happen to bytes without an operator.
  Writes& writes() { return writes_; }
  // They may be written from now on and at any time. The host must not give a recipe to what reads
  // them.
  void expose(Storage* storage);
  // Drops the recipe of the content (Rule 11): it stays from now on. Resident content only.
  void make_root(Storage* storage);
  // The same for a gradient, which may be moved to where it does not split the room of others.
  void make_gradient(Storage* storage);
  // A resident root may leave by a copy: nobody but operators uses its memory.
  void let_leave_by_copy(Storage* storage) { host_copies_.allow(storage->value); }

  // --- steps (Rule 11): see Steps and QuietSteps
  void begin_step() { steps_.begin(); }
  void end_step(bool boundary);
  bool is_quiet() const { return quiet_steps_.is_quiet(); }

  // --- the end of a budget
  // Live storages whose content is evicted now, oldest first.
  std::vector<Storage*> evicted_storages() const;
  // There is room to bring everything back.
  void grow(Bytes bytes);
  // What is resident becomes a root that stays: nothing is evicted or replayed after this.
  void forget_recipes();

  // --- what is known
  Host* host() const { return &host_; }
  Stats stats() const;
  void reset_peak(Space::Peak peak = Space::Peak::kHeld) { space_.reset(peak); }
  const Space& space() const { return space_; }
  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }
  EventLog& events() { return journal_.events; }
  Journal& journal() { return journal_; }
  // Turned on, the log starts anew, with what is held now.
  void log_events(bool on);
  void set_origin(Origin origin) { journal_.origin = origin; }

  // --- for tests and measurements
  Scores& scores() { return scores_; }
  // See Faults.
  Faults faults;
  // What copies cost; it may be measured later.
  Link link;
  bool is_valid() const {
    return space_.is_valid() && graph_.is_valid() && host_copies_.is_valid();
  }

 private:
  // In the order in which they know each other.
  Config config_;
  Host& host_;
  Journal journal_;
  Graph graph_;
  Space space_;
  Foresight foresight_;
  Scores scores_;
  CopyCost copy_cost_;
  HostCopies host_copies_;
  Chooser chooser_;
  Collector collector_;
  Restorer restorer_;
  Mover mover_;
  Evictor evictor_;
  Compactor compactor_;
  QuietSteps quiet_steps_;
  Allocator allocator_;
  Materializer materializer_;
  Writes writes_;
  Operators operators_;
  Steps steps_;
};

}  // namespace coop
