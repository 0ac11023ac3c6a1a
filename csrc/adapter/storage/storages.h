// Torch's storages and the core's: which of them shows which content, and what becomes of one when
// the core evicts, brings back or moves its content.
//
// An evicted StorageImpl keeps a DataPtr without memory whose context is our storage, so that its
// death is still seen; raw access throws (Rule 13). A storage's handle is its StorageImpl, as a
// weak reference; it has none until an operator has returned it, or used it.
//
// Note [Headers]
// 64 bytes before every block in main memory lead from an address to its storage, because oneDNN
// frees its scratch by address alone. Once an operator has returned a storage, its pointer knows it
// itself, since blocks are evicted and moved.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>

#include "adapter/locks.h"
#include "adapter/storage/memory.h"
#include "core/model/value.h"

namespace coop {

class Engine;

// One engine's. Under its lock, but for allocate() and the deleters, which take it.
class Storages {
 public:
  Storages(Engine& engine, Memory& memory);

  // --- the allocator
  c10::DataPtr allocate(Bytes bytes);         // throws a BudgetExceeded
  static void delete_storage(void* context);  // a Storage
  static void delete_address(void* context);  // the address of the content, behind a header
  // Frees what was allocated here by its address alone. False: it is not an arena's.
  static bool delete_raw(void* address);

  // --- which shows which
  // The storage behind a StorageImpl that this engine owns, or null. Another thread may evict or
  // move its bytes at any time, and with them what leads from the one to the other.
  Storage* find(c10::StorageImpl* impl) const;
  // The same for what an operator is about to use.
  Storage* look_up(c10::StorageImpl* impl) const;
  // An operator has made it, and returns it as `impl`: from now on it may be evicted and moved.
  void adopt(Storage& storage, c10::StorageImpl* impl) const;
  // Null when its last tensor is just going: whoever drops that waits for the lock, and does not
  // look at its memory.
  static c10::intrusive_ptr<c10::StorageImpl> hold(const Storage& storage);
  // Its storage is somebody else's from now on.
  void disown(c10::StorageImpl* impl);
  // Its memory is about to get an owner who frees by address. It is kept, so its header stays.
  void make_simple(Storage& storage);
  // Copies a resident tensor, which the caller holds, out of the arena. False: there is no memory.
  bool move_outside(Storage* storage);
  // What torch's resize_ to nothing does, wherever the bytes are. One count less keeps the engine:
  // drop_count() is to follow, unlocked.
  void drop_memory(c10::StorageImpl* impl);
  // The session or a storage is over, and one count less keeps the engine.
  void drop_count();

  // --- what the core decides
  void release(Storage& storage);
  void restore(Storage& storage);
  void copy(Value& to, const Value& from, Bytes bytes);
  void move(Value& value, Bytes from);

  // --- memory
  void* address(const Value& value) const {
    return value.external != nullptr ? value.external : base_ + value.offset + header_bytes_;
  }
  Bytes header_bytes() const { return header_bytes_; }
  Bytes content_bytes(const Storage& storage) const { return storage.bytes - header_bytes_; }

 private:
  c10::DataPtr fresh_ptr(Storage& storage) const;
  c10::DataPtr data_ptr(Storage& storage) const;
  template <typename F>
  void exchange(const Storage& storage, F&& f);
  void forget(Storage* storage);

  Engine& engine_;
  Memory& memory_;
  char* const base_;  // the memory's, which stays where it is
  const Bytes header_bytes_;
  // With one for the session: whoever takes the last one lets go of the engine.
  std::atomic<int64_t> count_{1};
};

}  // namespace coop
