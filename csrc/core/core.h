// The algorithm: places values, evicts windows, materializes what is needed, keeps the records.
//
// Not thread safe: the host calls it under one lock, and may release that lock while it runs an
// operator inside Host::replay. Everything locked stays where it is meanwhile.
#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/check.h"
#include "core/events.h"
#include "core/graph.h"
#include "core/needed.h"
#include "core/neighbourhood.h"
#include "core/pace.h"
#include "core/pages.h"
#include "core/policy.h"
#include "core/small_area.h"
#include "core/types.h"

namespace coop {

// The core's only way out.
class Host {
 public:
  virtual ~Host() = default;
  // Runs the operator of `record` again. Its inputs are resident and locked. Puts a fresh storage
  // from Core::allocate (or Core::take_for_write) into outputs[i] for every record.outputs[i].
  virtual void replay(Record& record, Storage** outputs) = 0;
  // The storage lost its bytes.
  virtual void release(Storage& storage) = 0;
  // The storage's bytes are at storage.value->offset now.
  virtual void restore(Storage& storage) = 0;
  virtual void copy(Value& to, const Value& from, Bytes bytes) = 0;
  // The value's bytes were at `from` and belong at value.offset; they may overlap if that is lower.
  // Its storage, if it has one, is there from now on.
  virtual void move(Value& value, Bytes from) = 0;
  // Whether values that are not locked may be moved now, and whether gradients may too: nobody else
  // can be reading them while they are being accumulated, or while an optimizer runs.
  virtual bool may_move() const { return true; }
  virtual bool may_move_gradients() const { return true; }
  // Whether what asks for memory now is tried again when it does not fit.
  virtual bool may_retry() const { return false; }
  // While a replay runs: whether it is what asks for memory now, not an operator of another thread.
  virtual bool is_replaying() const { return true; }
  // Nothing needs the record any more; it may be destroyed once the lock is free.
  virtual void retire(Record* record) = 0;
  // For quiet steps. A record with its cost, for one value whose bytes it will hold; and they are
  // about to be lost: replay() brings them back from it. Asked for only if the configuration says
  // so.
  virtual Record* new_saving_record(const Value&) { return nullptr; }
  virtual void save(Record&, const Value&) {}
};

// A storage that an operator is about to write.
struct Write {
  enum class Kind : uint8_t {
    kRoot,     // stays a root, written where it is
    kInPlace,  // a new version at the same address (Rule 5)
    kCopied,   // copy on write: a new version at another address
  };
  Storage* storage = nullptr;
  Value* old = nullptr;  // what the record reads; null for a root that nothing needs
  Kind kind = Kind::kRoot;
  bool keep_old = false;   // the operator makes or writes other values too, so that a replay needs
                           // the old bytes of a root
  bool make_root = false;  // what is written stays for good
  bool prepared = false;   // by begin()
  bool counted = false;    // among the storage's writers

  bool makes_version() const { return kind != Kind::kRoot && !storage->dead; }
};

// One running operator. Reused by the host from call to call.
struct Operation {
  std::vector<Value*> locked;
  std::vector<Write> writes;
  bool quiet = false;  // it could be recorded, but is not (see Core::is_quiet)
};

class Core {
 public:
  Core(const Config& config, Host* host);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // --- memory ---------------------------------------------------------------------------------
  // A storage with a block and no record yet. Evicts as the policy says; throws OutOfBudget.
  Storage* allocate(Bytes bytes, Side side);
  // Memory that is not the arena's, seen as a root: it is read by records and may be written.
  Storage* add_external(void* address, Bytes bytes);
  // The last tensor of the storage is gone (Rule 4).
  void storage_died(Storage* storage);

  // --- operators: begin, (the host runs it), then commit or abort --------------------------------
  // Materializes and locks the inputs, prepares the writes (which are inputs too).
  void begin(Operation& operation, Storage* const* inputs, size_t num_inputs);
  // The operator ran. `fresh` are the storages it made. With a record (owned from here on), what it
  // made or wrote becomes evictable; without, it stays for good, or, if the operation is quiet,
  // until something has to be evicted. `inputs` are the values the record reads.
  void commit(Operation& operation, Record* record, Value* const* inputs, size_t num_inputs,
              Storage* const* fresh, size_t num_fresh, Cost cost);
  // The operator threw. What it may have half written is recomputed when it is next needed.
  void abort(Operation& operation);

  // The last resort, for an operator that did not fit and was aborted: moves its inputs together,
  // so that the room besides them is in one piece; the second time the gradients too; the third
  // time everything but late values is evicted, the fourth time these too; the fifth time what is
  // not much smaller than the bytes it wanted is placed at one end and the other in turn, until it
  // ends. An attempt that changes nothing is passed over. True: it is worth trying again. `attempt`
  // counts them, from 0. Other roots stay where they are.
  bool make_room(Storage* const* inputs, size_t num_inputs, Bytes wanted, int* attempt);

  // --- during Host::replay -------------------------------------------------------------------
  // A fresh storage that holds the content of `value` and may be written: its own block if nothing
  // else needs it, or a copy.
  Storage* take_for_write(Value* value, const Record& record);

  // --- what a user may ask -------------------------------------------------------------------
  void materialize(Storage* storage);
  bool evict(Storage* storage);  // false: a root, pinned, or in use
  void evict_all();              // everything that can be
  // `for_good`: unpin() does not undo it.
  void pin(Storage* storage, const char* reason, bool for_good = false);
  void unpin(Storage* storage);
  // An operator ran, or failed. What others wrote or read meanwhile it cannot make a version of any
  // more: that is a root. Before commit() and abort(), which do it too.
  void settle_writes(Operation& operation);
  // The bytes are about to be written without an operator: what was made from them is settled
  // (Rule 6). Resident content only.
  void before_unseen_write(Storage* storage);
  // The same, but from now on and at any time. The host must not record what reads it any more.
  void expose(Storage* storage);
  // Drops how the content was made (Rule 11): it is never evicted again. Resident content only.
  void make_root(Storage* storage);
  // The same for a gradient. There will be many, so it is moved to where it does not split the room
  // of others.
  void make_gradient(Storage* storage);

  // --- steps (Rule 11) -----------------------------------------------------------------------
  void begin_step();  // an optimizer starts to write
  // It has ended. Not a boundary: it ran inside a backward pass, for some of the parameters.
  void end_step(bool boundary);

  // The last steps needed no search, so this one is expected to need none, and the host need not
  // make records. If it does need one, what was not recorded is saved when it is evicted.
  bool is_quiet() const { return config_.quiet_after > 0 && quiet_steps_ >= quiet_after_; }

  // Live storages whose content is evicted now, oldest first.
  std::vector<Storage*> evicted_storages() const;
  // The budget is over: there is room to bring everything back.
  void grow(Bytes bytes);
  // What is resident becomes a root: nothing is evicted or replayed after this.
  void forget_records();

  const Config& config() const { return config_; }
  Host* host() const { return host_; }
  Stats stats() const;
  Shortage shortage(Bytes wanted);
  void reset_peak() { peak_ = held_; }
  const Arena& arena() const { return arena_; }
  EventLog& events() { return events_; }
  Pace& pace() { return pace_; }
  // Turned on, the log starts anew, with what is held now.
  void log_events(bool on);
  double clock() const { return clock_; }
  void set_origin(Origin origin) { origin_ = origin; }
  int64_t last_serial() const { return next_serial_; }
  // For a walk over values: those that it saw have it in Value::mark.
  int64_t new_mark() { return ++mark_; }
  // Whether a record of how it was made is worth keeping: small values are roots from the start.
  bool is_recordable(const Storage* storage) const { return storage->value->arena == &arena_; }

  // Score of an evictable value: own cost and evicted neighbourhood; `exact` walks the graph
  // instead of asking the union-find (for tests and measurements).
  Cost neighbourhood_cost(const Value* value, bool exact);

  template <typename F>
  void for_each_block(F&& f) const {
    const BlockMap& blocks = arena_.blocks();
    for (int c = 0; c < blocks.num_chunks(); ++c) {
      for (int i = 0; i < blocks.chunk(c).count; ++i) f(blocks.chunk(c).block(i));
    }
  }

  template <typename F>
  void for_each_block_in(const Window& window, F&& f) const {
    if (window.empty()) return;
    const BlockMap& blocks = arena_.blocks();
    BlockMap::Position position = blocks.find(window.begin);
    while (window.contains(blocks.at(position).offset)) {
      f(blocks.at(position));
      if (!blocks.has_next(position)) return;
      position = blocks.next(position);
    }
  }

  // Live storages in order of their slots.
  template <typename F>
  void for_each_storage(F&& f) const {
    for (const Value& value : values_) {
      if (value.serial != 0 && value.storage != nullptr) f(value.storage);
    }
  }

  // The n-th placement from now on fails as if nothing could be evicted, and there is no last
  // resort for it; 0: none. Returns what was left of the last such n. For tests of what follows an
  // error.
  int64_t fail_placement(int64_t n) {
    failed_ = false;
    return std::exchange(fail_in_, n);
  }

  // Brings the blocks up to date, as a search does before it reads them.
  void refresh_stale();

  bool is_valid() const;

 private:
  struct Frame {
    Value* value;
    size_t kept_begin;
    int attempt;  // to replay it
  };
  static constexpr Bytes kNoAlternation = std::numeric_limits<Bytes>::max();

  // memory (core.cc)
  Bytes place_or_evict(Value* value, Bytes bytes, Side side);
  Bytes place_lowest(Value* value, Bytes bytes);
  void place(Value* value, Bytes bytes, bool small, Side side);
  bool place_small(Value* value);
  // By the program, and not by a replay.
  bool is_asked_for() const { return materializing_ == 0 || !host_->is_replaying(); }
  void evict_window(const Window& window);
  void evict_value(Value* value);
  void free_block(Value* value);
  void release_block(Value* value);
  void move_block(Value* from, Value* to);
  void copy_content(Value* from, Value* to, Bytes to_bytes);

  // choosing (choose.cc)
  Window choose(Bytes bytes);
  Window next_best(Bytes bytes, int64_t* num_looked);
  Window rescored(const RankedWindow& ranked, Bytes bytes, Bytes* room, int64_t* num_looked);
  Window search(Bytes bytes);
  Window look_again(Bytes bytes);
  Window spare_dear(Bytes bytes, const Window& window);
  // To copy so many bytes: a launch, and to read and write them, by what operators have cost.
  Cost copying_cost(Bytes bytes) const {
    return least_cost_ + 2 * least_byte_cost_ * static_cast<double>(bytes);
  }
  bool protects_late() const { return goes_further() && config_.window; }
  bool unprotect_late();
  void hide_locked();
  void show_locked();

  // moving (move.cc)
  bool rearrange(Storage* const* inputs, size_t num_inputs, int attempt);
  bool make_room_for_replay(int* attempt);
  bool move_together(std::vector<Value*> values, int64_t mark, bool gradients, bool evict);
  void gather_gradients();
  bool slide_down(Value* value, int64_t barrier_mark, bool evict);
  void pack(const std::vector<Value*>& values);
  void move_down(Value* value, Bytes to);
  bool move_above(Value* value, Bytes least);
  void move_aside(Value* value);
  void moved(Value* value, Bytes from, Bytes to);
  // Whether it has what is ours alone of the last resort (decision 0004).
  bool goes_further() const { return config_.last_resort && config_.policy == Policy::kCoop; }
  bool is_movable(const Value* value) const {
    return value->arena == &arena_ && value->is_evictable() && value->locks == 0;
  }

  // graph (graph.cc)
  Value* new_value(Bytes bytes);
  void recycle(Value* value);
  Storage* new_storage(Bytes bytes, Value* value);
  void recycle(Storage* storage) { unused_storages_.push_back(storage); }
  void attach(Value* value, Storage* storage);
  void detach(Value* value);
  void set_record(Value* value, Record* record, size_t index);
  Record* drop_record(Value* value);
  void link_inputs(Record* record, Value* const* inputs, size_t num_inputs);
  void unlink(Record* record);
  void destroy_doomed();
  void reconsider(Value* value);
  void root(Value* value);

  // scores (scores.cc)
  void absent(Value* value);
  void join_sets();
  void join(Value* value);
  void wake(Value* value);
  void present(Value* value);
  void add_beside(Value* value, int32_t node);
  void find_beside(BesideSets& beside);
  void set_changed(int32_t node);
  bool mark_beside_changed();
  void mark_stale(Value* value, Stale what) {
    if (value->stale == 0) stale_values_.push_back(value);
    value->stale |= what;
  }
  void touch(Value* value) {
    value->last_access = clock_;
    // No search looks at a root, and what gets a record is marked then.
    if (value->record != nullptr && value->arena == &arena_) mark_stale(value, kStaleAccess);
  }
  void refresh(Value* value);
  void update_blocks();
  void rescore_blocks();
  Cost candidate_cost(Value* value, uint8_t stale);
  Cost score_cost(Value* value);
  // Of a late value's block: it is moved. To copy it takes no longer than it took to make it.
  static Cost moving_cost(const Value* value) { return -std::max(value->cost, 1.0); }
  bool scores_are_right();
  Cost exact_neighbourhood(const Value* value);
  Cost sets_cost(const Value* value);
  Cost unseen_cost(int32_t node);
  Cost window_cost(const Window& window);

  // operators (operators.cc)
  void prepare_writes(Operation& operation);
  void prepare_write(Operation& operation, Write& write);
  void finish_writes(Operation& operation);
  void settle(Storage* storage);
  bool root_dependents(const std::vector<Value*>& dependents);
  bool gather_dependents(std::vector<Value*> seeds, Bytes limit, std::vector<Value*>* dependents);
  void keep_private_copy(Storage* storage);
  void split(Storage* storage);

  // quiet steps (quiet.cc)
  void leave_unrecorded(Value* value);
  bool is_unrecorded(const Value* value) const;
  void record_saving(Value* value);
  void save(Value* value);
  void end_quiet();

  // materializer (materialize.cc)
  void lock(Value* value) {
    if (value->locks++ > 0) return;
    value->lock_index = static_cast<int32_t>(locked_.size());
    locked_.push_back(value);
  }
  void unlock(Value* value) {
    COOP_DEBUG_ASSERT(value->locks > 0);
    if (--value->locks > 0) return;
    Value* last = locked_.back();
    locked_[value->lock_index] = last;
    last->lock_index = value->lock_index;
    locked_.pop_back();
    value->lock_index = -1;
    if (value->storage == nullptr) reconsider(value);
  }
  void keep(Value* value);
  void let_go(size_t base);
  void make_resident(Value* const* values, size_t num_values);
  void bring_back(Value* const* values, size_t num_values, bool hold);
  void materialize_value(Value* value, bool hold);
  void replay(Value* wanted);
  void adopt(Value* value, Storage* fresh, bool wanted);
  void free_transients();

  void emit(EventKind kind, const Value* value, int64_t amount = 0, uint8_t detail = 0) {
    events_.emit(kind, value->serial, value->offset, value->bytes, amount, detail, clock_, origin_);
  }

  Config config_;
  Host* host_;
  Arena arena_;
  SmallArea small_;
  Needed needed_;
  Pace pace_;
  Bytes extent_bytes_ = 0;
  Bytes held_ = 0;  // by values; the unused rest of an extent is free, if only for small ones
  Bytes peak_ = 0;
  Search search_;
  EventLog events_;
  Stats stats_;
  double clock_ = 0;
  // Of all operators with a record: about what a launch takes, and to write a byte.
  Cost least_cost_ = std::numeric_limits<Cost>::infinity();
  Cost least_byte_cost_ = std::numeric_limits<Cost>::infinity();
  Origin origin_;
  int64_t fail_in_ = 0;
  bool failed_ = false;                       // the last failure was such a one
  Bytes alternating_bytes_ = kNoAlternation;  // from this size on, at the ends in turn
  Side next_end_ = Side::kRight;

  Pages pages_;
  std::pmr::deque<Value> values_{&pages_};
  Neighbourhoods neighbourhoods_{&pages_};
  std::vector<Value*> unused_values_;
  std::pmr::deque<Storage> storages_{&pages_};
  std::vector<Storage*> unused_storages_;
  int64_t next_serial_ = 0;
  int64_t mark_ = 0;
  Value* first_recorded_ = nullptr;
  Value* last_recorded_ = nullptr;
  Record* first_record_ = nullptr;
  Record* last_record_ = nullptr;
  std::vector<Value*> locked_;
  std::vector<Value*> stale_values_;   // also such as are gone
  std::vector<int32_t> changed_sets_;  // by any node, since the last search
  std::vector<Value*> unjoined_;       // evicted since the last search; null where one came back
  size_t num_joined_ = 0;              // of them, the first ones
  bool all_sets_changed_ = false;      // too many to list

  int64_t quiet_steps_ = 0;  // in a row, without a search; -1 in one with a search
  int64_t quiet_after_ = 0;  // so many

  int64_t step_ = 0;
  int64_t step_begin_serial_ = 0;
  bool gathered_ = false;  // the gradients, since that step began

  std::vector<Frame> frames_;  // the materializer's explicit stack (Rule 12)
  std::vector<Value*> kept_;   // materialized for a frame that still waits for other inputs
  struct Transient {
    int32_t id;
    int64_t serial;
  };
  std::vector<Transient> transients_;
  int materializing_ = 0;
  std::vector<Value*> doomed_;    // to be destroyed by destroy_doomed()
  std::vector<Value*> to_evict_;  // scratch of evict_window()
  std::vector<Value*> to_move_;   // the same
  std::vector<Value*> spared_;    // of the window that was chosen: moved, not evicted
  std::vector<Value*> walked_;    // scratch of exact_neighbourhood() and wake()
  struct Marked {
    BlockMap::Position position;
    Cost cost;
  };
  std::vector<Marked> hidden_;  // scratch of hide_locked(): locked blocks and their cost
  std::vector<Marked> marked_;  // scratch of spare_dear(): blocks that would be moved
};

}  // namespace coop
