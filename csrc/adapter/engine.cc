#include "adapter/engine.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "adapter/call/attend.h"
#include "adapter/trace/source.h"

namespace coop {

Engine::Engine(const EngineConfig& config, std::unique_ptr<Memory> memory)
    : config_(config),
      memory_(std::move(memory)),
      recipes_(locks_),
      host_(*this),
      storages_(*this, *memory_),
      core_(config.core, &host_),
      externals_(core_, locks_, storages_.header_bytes()),
      in_flight_(*this),
      costs_(config.measure ? memory_->make_stopwatch() : nullptr) {}

Engine::~Engine() { recipes_.clean_up(); }

void Engine::materialize(c10::StorageImpl* impl) {
  const ReplayLock guard(locks_);
  Storage* storage = storages_.find(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr) recorder_->materialize(storage);
  core_.materialize(storage);
}

void Engine::lend(c10::ArrayRef<c10::StorageImpl*> impls, Operation* operation) {
  const ReplayLock guard(locks_);
  std::vector<Storage*> storages;
  for (c10::StorageImpl* impl : impls) {
    Storage* storage = storages_.look_up(impl);
    if (storage == nullptr) continue;
    if (recorder_ != nullptr) recorder_->materialize(storage);
    storages.push_back(storage);
  }
  for (int attempt = 0;;) {
    try {
      return core_.begin(*operation, storages.data(), storages.size());
    } catch (const OutOfBudget& error) {
      const Bytes wanted = error.shortage.wanted;
      if (!core_.make_room(storages.data(), storages.size(), wanted, &attempt)) throw;
    }
  }
}

void Engine::take_back(Operation* operation) {
  const EngineLock guard(locks_);
  core_.abort(*operation);
}

bool Engine::evict(c10::StorageImpl* impl) {
  in_flight_.collect();
  const ReplayLock guard(locks_);
  Storage* storage = storages_.find(impl);
  if (storage != nullptr && recorder_ != nullptr) recorder_->evict(storage);
  return storage != nullptr && core_.evict(storage);
}

void Engine::evict_all() {
  in_flight_.collect();
  const ReplayLock guard(locks_);
  core_.evict_all();
}

void Engine::bring_back_roots() {
  const UninterruptedScope uninterrupted;
  const ReplayLock guard(locks_);
  for (Storage* storage : core_.evicted_storages()) {
    const Value* value = storage->value;
    if (value->is_root() && value->bytes <= core_.space().arena().largest_free()) {
      core_.materialize(storage);
    }
  }
}

void Engine::keep(c10::StorageImpl* impl, const char* reason, bool for_good) {
  const ReplayLock guard(locks_);
  Storage* storage = storages_.find(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr) recorder_->materialize(storage);
  core_.materialize(storage);
  if (recorder_ != nullptr) recorder_->keep(storage);
  core_.keep(storage, reason, for_good);
}

void Engine::keep(Storage* storage, const char* reason) {
  if (recorder_ != nullptr) recorder_->keep(storage);
  core_.keep(storage, reason, /*for_good=*/true);
}

// What coop.keep did. What is kept because others may use its memory stays so.
void Engine::unkeep(c10::StorageImpl* impl) {
  const EngineLock guard(locks_);
  Storage* storage = storages_.find(impl);
  if (storage == nullptr) return;
  const bool kept = storage->keeps > 0;
  core_.unkeep(storage);
  if (recorder_ != nullptr && kept && storage->keeps == 0) recorder_->unkeep(storage);
}

void Engine::expose(c10::StorageImpl* impl) {
  {
    const ReplayLock guard(locks_);
    Storage* storage = storages_.find(impl);
    const bool ours = storage != nullptr;
    if (!ours) {
      if (impl->nbytes() == 0 || impl->device() != memory_->device()) return;
      storage = externals_.add_shared(impl);
    }
    if (storage->exposed) return;
    if (recorder_ != nullptr) recorder_->expose(storage, impl);
    core_.materialize(storage);
    core_.expose(storage);
    if (ours) {
      core_.keep(storage, "its memory is shared with a NumPy array or the like", /*for_good=*/true);
    }
  }
  recipes_.clean_up();
}

void Engine::before_unseen_write(c10::StorageImpl* impl) {
  c10::Storage garbage;  // destroyed unlocked
  {
    const ReplayLock guard(locks_);
    Storage* storage = storages_.find(impl);
    if (recorder_ != nullptr) recorder_->unseen_write(storage, impl);
    if (storage != nullptr) {
      core_.materialize(storage);
      core_.writes().before_unseen_write(storage);
    } else if (Storage* external = externals_.find(impl);
               external != nullptr && !external->exposed) {
      core_.writes().before_unseen_write(external);
      garbage = externals_.forget(impl);  // its address may change too
    }
  }
  recipes_.clean_up();
}

bool Engine::give_back(c10::StorageImpl* impl) {
  {
    const ReplayLock guard(locks_);
    Storage* storage = storages_.find(impl);
    if (storage == nullptr) return false;
    if (recorder_ != nullptr) recorder_->before_give_back(storage);
    core_.writes().before_give_back(storage);
    storages_.drop_memory(impl);
  }
  recipes_.clean_up();
  storages_.drop_count();
  return true;
}

void Engine::undefine(c10::StorageImpl* impl) {
  const EngineLock guard(locks_);
  Storage* storage = storages_.look_up(impl);
  if (storage == nullptr) return;
  if (recorder_ != nullptr) recorder_->undefine(storage);
  core_.writes().undefine(storage);
}

void Engine::begin_step() {
  in_step_.store(true, std::memory_order_relaxed);
  {
    const ReplayLock guard(locks_);
    if (recorder_ != nullptr) recorder_->begin_step();
    core_.begin_step();
  }
  recipes_.clean_up();
}

void Engine::end_step(bool boundary) {
  in_step_.store(false, std::memory_order_relaxed);
  {
    const ReplayLock guard(locks_);
    if (recorder_ != nullptr) recorder_->end_step(boundary);
    core_.end_step(boundary);
    if (boundary) costs_.end_step();
  }
  warn_if_slow(*this);
  in_flight_.collect();
  recipes_.clean_up();
  externals_.sweep();
}

bool Engine::is_optimizing() const {
  return in_step_.load(std::memory_order_relaxed) && !at::GradMode::is_enabled();
}

Stats Engine::stats() {
  const EngineLock guard(locks_);
  return core_.stats();
}

Shortage Engine::shortage(Bytes bytes) {
  const EngineLock guard(locks_);
  return core_.space().shortage(bytes);
}

std::map<std::string, std::string> Engine::list_kept_operators() {
  const EngineLock guard(locks_);
  return kept_operators_.list();
}

void Engine::log_events(bool on, size_t limit) {
  if (on) start_sources();
  records_sources_.store(on, std::memory_order_relaxed);
  const EngineLock guard(locks_);
  core_.events().limit = limit;
  core_.log_events(on);
}

void Engine::start_recording(const Recorder::Options& options) {
  if (options.source_lines) start_sources();
  std::unique_ptr<Recorder> last;  // destroyed unlocked
  const EngineLock guard(locks_);
  last = std::move(recorder_);
  trace_ = std::make_unique<JsonLines>(storages_.header_bytes());
  recorder_ = std::make_unique<Recorder>(core_, storages_.header_bytes(), options, *trace_);
  if (options.source_lines) records_sources_.store(true, std::memory_order_relaxed);
}

std::string Engine::stop_recording() {
  std::unique_ptr<Recorder> last;  // destroyed unlocked
  const EngineLock guard(locks_);
  std::string lines = trace_ == nullptr ? std::string() : trace_->take();
  last = std::move(recorder_);
  trace_ = nullptr;
  records_sources_.store(core_.events().enabled, std::memory_order_relaxed);
  return lines;
}

std::vector<std::string> Engine::close() {
  const UninterruptedScope uninterrupted;
  std::vector<std::string> lost;
  // What is brought back, which other threads may drop meanwhile; let go of unlocked.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;
  // So are errors: one of Python's holds the frames that it came through, and their tensors.
  std::vector<std::exception_ptr> errors;
  {
    const ReplayLock guard(locks_);
    const Bytes rest = memory_->reserved_bytes() - config_.core.budget - config_.core.alignment;
    if (rest > 0) core_.grow(rest / config_.core.alignment * config_.core.alignment);
    // What is brought back leaves the arena at once, so that there is room for the next. What fails
    // is tried again after all others, when what only their recipes kept is gone, for as long as
    // any of them came back.
    for (bool progress = true; progress;) {
      progress = false;
      lost.clear();
      const std::vector<Storage*> evicted = core_.evicted_storages();
      const size_t first = held.size();
      for (const Storage* storage : evicted) held.push_back(Storages::hold(*storage));
      for (size_t i = 0; i < evicted.size(); ++i) {
        Storage* storage = evicted[i];
        // Its last tensor is just going, or another's replay has brought it back.
        if (!held[first + i] || storage->value->is_ready()) continue;
        const std::string size = std::to_string(storages_.content_bytes(*storage)) + " bytes (";
        try {
          core_.materialize(storage);
          if (!storages_.move_outside(storage)) core_.make_root(storage);
          progress = true;
        } catch (const std::exception& error) {
          lost.push_back(size + error.what() + ")");
          errors.push_back(std::current_exception());
        }
      }
    }
    core_.forget_recipes();
  }
  errors.clear();
  held.clear();
  recipes_.clean_up();
  externals_.sweep();
  {
    const EngineLock guard(locks_);
    core_.space().for_each_block([&](const Block& block) {
      if (block.is_free()) memory_->discard(block.offset, block.bytes);
    });
  }
  // A GPU's is closed once for every budget.
  if (!closed_.exchange(true)) storages_.drop_count();
  return lost;
}

}  // namespace coop
