// Collectives that have returned, and may still run. What one of them reads and writes stays where
// it is until its Work is done, and may leave again then: what was only read by its recipe.
//
// Nobody waits for one: another process may be waiting for this one meanwhile. Whoever allocates
// looks whether one is done; whoever finds no room looks at all of them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "adapter/dispatch/collectives.h"
#include "core/engine/operation.h"

namespace coop {

class Engine;

// One engine's. Its mutex is a leaf (Note [Lock order]); a Work is asked, and let go of, without a
// lock: it may be Python's, and may be the last to hold tensors.
class InFlight {
 public:
  explicit InFlight(Engine& engine) : engine_(engine) {}
  ~InFlight();
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // `operation` has locked what the collective uses.
  void add(Operation operation, c10::intrusive_ptr<c10d::Work> work);
  // Whether the Work tells when the collective is done. See Note [When a collective is done].
  bool understands(const c10d::Work& work, const Collective& collective) const;
  // Whether a collective that is not known to be done uses it. Under the engine's lock.
  bool uses(const Value* value);
  // Lets go of what those used that are done; true: there were such. Without a lock.
  bool collect() { return !is_empty() && collect(/*all=*/true); }
  // The same for one of them, another one each time.
  void poll() {
    if (!is_empty()) [[unlikely]] {
      collect(/*all=*/false);
    }
  }
  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  // Between the two, collectives are put together and begin later: their Works tell nothing.
  static void begin_coalescing() { coalescing().fetch_add(1); }
  static void end_coalescing() { coalescing().fetch_sub(1); }
  static bool is_coalescing() { return coalescing().load() > 0; }

 private:
  struct Entry {
    Operation operation;
    c10::intrusive_ptr<c10d::Work> work;
    int64_t number;
  };

  bool collect(bool all);
  static std::atomic<int>& coalescing();

  Engine& engine_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_;
  int64_t last_number_ = 0;
  size_t next_ = 0;
  std::atomic<size_t> count_{0};
};

}  // namespace coop
