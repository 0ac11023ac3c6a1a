#include "core/engine/writes.h"

namespace coop {

namespace {

// Whether what is written becomes another value, as far as the old one goes.
bool becomes_version(const Value* value) { return value->is_version() || value->undefined; }

}  // namespace

void Writes::begin(std::vector<Write>& writes) {
  for (Write& write : writes) {
    ++write.storage->writers;
    write.counted = true;
  }
}

// Roots first: to protect what depends on one may make roots of other values that are written, so
// how those are written is known only after the last root.
void Writes::prepare(std::vector<Write>& writes, std::vector<Value*>* copies) {
  if (writes.empty()) return;
  bool has_versions = false;  // a replay for their sake reads the old bytes of the roots too
  for (Write& write : writes) {
    write.prepared = false;
    write.kind = Write::Kind::kRoot;
    Storage* storage = write.storage;
    if (storage->writers == 1) continue;
    // Another thread's operator writes it as well.
    storage->contended = true;
    if (storage->in_place) materializer_.split_version(storage);
  }
  for (Write& write : writes) {
    Value* value = write.storage->value;
    // Somebody who has its address may have written it before. So it can be made anew only from
    // where all of it was written by an operator.
    const bool is_filled = value->undefined && write.overwrites && value->users == nullptr;
    if (write.make_root || (value->undefined && !is_filled)) {
      collector_.drop_recipe(value);
      if (is_filled) host_copies_.allow(value);
    }
    has_versions |= becomes_version(value);
    host_copies_.before_write(value);
  }
  for (bool found = true; found;) {
    found = false;
    for (Write& write : writes) {
      if (write.prepared || becomes_version(write.storage->value)) continue;
      write.keep_old |= has_versions;
      prepare_root(write);
      found = write.prepared = true;
    }
  }
  for (Write& write : writes) {
    if (!write.prepared) prepare_version(write, copies);
  }
}

void Writes::prepare_root(Write& write) {
  Value* value = write.storage->value;
  write.kind = Write::Kind::kRoot;
  write.old = nullptr;
  if (write.keep_old) {
    keep_private_copy(write.storage);
    write.old = value;
  } else if (value->users != nullptr) {
    protect_dependents(write.storage);
  }
  host_copies_.discard(write.storage->value);
  write.lets_leave = write.storage->value != value && value->on_host != HostState::kNever;
}

void Writes::prepare_version(Write& write, std::vector<Value*>* copies) {
  Storage* storage = write.storage;
  Value* value = storage->value;
  write.old = value;
  if (inplace_) {
    write.kind = Write::Kind::kInPlace;  // Rule 5; the new version is made when it has been written
    storage->in_place = true;
    return;
  }
  // Copy on write: the operator works on a copy, the old version keeps its address until then.
  Value* copy = graph_.new_value(value->bytes);
  allocator_.place(copy, storage->bytes, /*small=*/false, Side::kLeft);
  mover_.copy(value, copy, storage->bytes);
  write.kind = Write::Kind::kCopied;
  graph_.detach(value);
  graph_.attach(copy, storage);
  copies->push_back(copy);
  graph_.lock(copy);
  host_.restore(*storage);
}

// An operator may replace a storage's memory (resize_, or an `out=` of another size): the storage
// it began with is dead then.
void Writes::finish(std::vector<Write>& writes) {
  for (const Write& write : writes) {
    Storage* storage = write.storage;
    if (!write.counted) continue;
    if (write.kind == Write::Kind::kInPlace) storage->in_place = false;
    if (--storage->writers > 0) continue;
    storage->in_place = storage->contended = false;
    if (write.lets_leave) host_copies_.allow(storage->value);
    if (storage->dead) collector_.storage_died(storage);
  }
  writes.clear();
}

void Writes::resolve(std::vector<Write>& writes) {
  for (Write& write : writes) {
    const Storage* storage = write.storage;
    const bool was_split = write.kind == Write::Kind::kInPlace && storage->value != write.old;
    // Nothing brings its old bytes back for whoever uses them as well.
    const Value* old = write.old;
    const bool is_needed = write.kind == Write::Kind::kInPlace && old->is_root() &&
                           (old->users != nullptr || old->locks > 1);
    if (!storage->contended && !was_split && !is_needed) continue;
    write.kind = Write::Kind::kRoot;
    storage->value->undefined = false;
  }
}

// What is brought back or placed for it must not push out the value itself.
void Writes::protect_dependents(Storage* storage) {
  Value* value = storage->value;
  std::vector<Value*> dependents;
  const bool cheaper = graph_.gather_dependents({value}, value->bytes, &dependents);
  graph_.lock(value);
  try {
    if (!cheaper || !make_roots(dependents) || value->users != nullptr) keep_private_copy(storage);
  } catch (...) {
    collector_.unlock(value);
    throw;
  }
  collector_.unlock(value);
}

void Writes::before_unseen_write(Storage* storage) {
  collector_.drop_recipe(storage->value);
  if (storage->value->users != nullptr) protect_dependents(storage);
  host_copies_.forbid(storage->value);
}

// A root that dies stays where recipes need it. Where what is made from it is smaller, that stays
// instead.
void Writes::before_give_back(Storage* storage) {
  Value* value = storage->value;
  if (!value->is_root() || value->users == nullptr) return;
  std::vector<Value*> dependents;
  graph_.gather_dependents({value}, space_.budget(), &dependents);
  // What a backward pass made is not evicted, but all that it was made from would stay for it.
  Bytes bytes = 0;
  for (const Value* dependent : dependents) {
    if (!dependent->made_in_backward) bytes += dependent->bytes;
  }
  if (bytes > value->bytes) return;
  graph_.lock(value);
  try {
    make_roots(dependents);
  } catch (...) {
    collector_.unlock(value);
    throw;
  }
  collector_.unlock(value);
}

bool Writes::make_roots(const std::vector<Value*>& values) {
  try {
    for (Value* value : values) {
      if (value->is_root()) continue;
      if (!value->is_saved()) materializer_.make_resident(&value, 1);
      collector_.drop_recipe(value);
    }
  } catch (const OutOfBudget&) {
    space_.needed().kept_recipe();
    return false;
  }
  return true;
}

// The storage gets a new root at the old address, the old value (which is locked, so it stays where
// it is meanwhile) a copy of the bytes.
void Writes::keep_private_copy(Storage* storage) {
  Value* old = storage->value;
  Value* copy = graph_.new_value(old->bytes);
  allocator_.place(copy, storage->bytes, space_.is_small(storage->bytes), Side::kLeft);
  mover_.copy(old, copy, storage->bytes);
  graph_.detach(old);
  graph_.attach(copy, storage);
  space_.swap(old, copy);
  host_copies_.on_exchanged(old);
}

}  // namespace coop
