// The core's way out into torch: what its decisions do there, and what torch allows now.
#pragma once

#include "core/host.h"

namespace coop {

class Engine;

// Called under the engine's lock.
class TorchHost final : public Host {
 public:
  explicit TorchHost(Engine& engine) : engine_(engine) {}
  // Of a recipe's host, or a storage's.
  static Engine& engine_of(Host& host) { return static_cast<TorchHost&>(host).engine_; }
  static Engine& engine_of(const Storage& storage);

  void release(Storage& storage) override;
  void restore(Storage& storage) override;
  void copy(Value& to, const Value& from, Bytes bytes) override;
  void move(Value& value, Bytes from) override;
  bool may_move() const override;
  bool may_move_gradients() const override;
  bool may_retry() const override;
  bool is_replaying() const override;
  Ends& ends() override;
  SavedBytes* new_saved_bytes(const Value& value) override;
  bool copy_out(const Value& value, const HostExtents& to, double last_use) override;
  void placed(const Value& value) override;
  Storage* copy_in(const Value& value, const HostExtents& from, bool later) override;
  void arrived(const Value& value) override;
  bool is_copy(const Value& value, const HostExtents& extents) override;

 private:
  Engine& engine_;
  bool is_copying_in_ = false;
};

}  // namespace coop
