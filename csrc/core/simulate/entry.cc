#include "core/simulate/entry.h"

namespace coop {

// The compiler says when an enumerator is missing from one of these.

const char* name_of(EntryKind kind) {
  using Kind = EntryKind;
  switch (kind) {
    case Kind::kOperator:
      return "op";
    case Kind::kRoot:
      return "root";
    case Kind::kFree:
      return "free";
    case Kind::kKeep:
      return "keep";
    case Kind::kUnkeep:
      return "unkeep";
    case Kind::kEvict:
      return "evict";
    case Kind::kMaterialize:
      return "materialize";
    case Kind::kBeginStep:
      return "step begin";
    case Kind::kEndStep:
      return "step end";
    case Kind::kGradient:
      return "make_root";
    case Kind::kExternal:
      return "external";
    case Kind::kExpose:
      return "expose";
    case Kind::kEndStepInside:
      return "step end_inside";
    case Kind::kUnseenWrite:
      return "unseen_write";
    case Kind::kLeaf:
      return "leaf";
    case Kind::kUndefine:
      return "undefine";
    case Kind::kGiveBack:
      return "give_back";
  }
  return nullptr;
}

const char* name_of(MemoryStep::Kind kind) {
  using Kind = MemoryStep::Kind;
  switch (kind) {
    case Kind::kOutput:
      return "output";
    case Kind::kTemporary:
      return "temporary";
    case Kind::kFree:
      return "free";
    case Kind::kRoot:
      return "root";
  }
  return nullptr;
}

}  // namespace coop
