// What an operator is about to write: how that is done, so that what was made from the old bytes
// can still be recomputed (Rules 5 to 7).
//
// Note [Undefined memory]
// What aten::empty and the like make is filled by C++ through its address, which no operator tells
// us. So it is no value with a recipe: it stays, and stays for good once anything reads it or
// writes a part of it. Only an operator that overwrites all of it without reading it (copy_, fill_,
// random fills, out=) makes it a version, whose recipe does not need the old bytes.
//
// Note [Writes by several threads]
// An operator in place makes the next version when it ends. If meanwhile another thread writes the
// same storage, or a replay needs the old version, the two are split at once: the old version lives
// on without memory, what is being written is a root.
#pragma once

#include <vector>

#include "core/engine/allocator.h"
#include "core/engine/materializer.h"
#include "core/engine/operation.h"

namespace coop {

class Writes {
 public:
  Writes(bool inplace, Host& host, Graph& graph, Space& space, Collector& collector,
         Allocator& allocator, Mover& mover, Materializer& materializer, HostCopies& host_copies)
      : inplace_(inplace),
        host_(host),
        graph_(graph),
        space_(space),
        collector_(collector),
        allocator_(allocator),
        mover_(mover),
        materializer_(materializer),
        host_copies_(host_copies) {}

  // They are about to be prepared: counts them among their storages' writers.
  void begin(std::vector<Write>& writes);
  // Decides each write's kind. Copies that it makes for them are attached, and added to `copies`.
  void prepare(std::vector<Write>& writes, std::vector<Value*>* copies);
  // The operator ran, or failed. What others wrote or read meanwhile it cannot make a version of
  // any more: that is a root.
  void resolve(std::vector<Write>& writes);
  // The operator is done with what it wrote.
  void finish(std::vector<Write>& writes);

  // Live recipes read a root that is about to be written. The cheaper of keeping a copy of the old
  // bytes, or making roots of what would be recomputed from them (Rule 6).
  void protect_dependents(Storage* storage);
  // Brings them back and drops their recipes. False when they could not all be made resident.
  bool make_roots(const std::vector<Value*>& values);
  // The bytes are about to be written without an operator. Resident content only.
  void before_unseen_write(Storage* storage);
  // Their memory was just taken without an operator: see Value::undefined.
  void undefine(Storage* storage) { storage->value->undefined = space_.has(storage->value); }
  // They are about to be given back without an operator, though the storage lives on.
  void before_give_back(Storage* storage);

 private:
  void prepare_root(Write& write);
  void prepare_version(Write& write, std::vector<Value*>* copies);
  void keep_private_copy(Storage* storage);

  const bool inplace_;
  Host& host_;
  Graph& graph_;
  Space& space_;
  Collector& collector_;
  Allocator& allocator_;
  Mover& mover_;
  Materializer& materializer_;
  HostCopies& host_copies_;
};

}  // namespace coop
