// Carries out plans. Nothing else takes a block from a value that may still be needed.
#pragma once

#include "core/engine/mover.h"
#include "core/engine/restorer.h"
#include "core/host.h"
#include "core/policy/policy.h"

namespace coop {

class Evictor {
 public:
  Evictor(Host& host, Space& space, Scores& scores, Restorer& restorer, Mover& mover,
          Journal& journal)
      : host_(host),
        space_(space),
        scores_(scores),
        restorer_(restorer),
        mover_(mover),
        journal_(journal) {}

  void apply(const Plan& plan);
  // The value can leave, and is not locked. False: it stays, because main memory has no room for
  // its copy, and it has no other way back.
  bool evict(Value* value);
  // The same for what has a way back already, and whose bytes are not what they should be.
  void give_up(Value* value);
  // Everything that can be, and for which f(value) is not true. Whether there was any.
  template <typename F>
  bool evict_all_but(F&& stays);

 private:
  void pack(const std::vector<Value*>& values);

  Host& host_;
  Space& space_;
  Scores& scores_;
  Restorer& restorer_;
  Mover& mover_;
  Journal& journal_;
};

template <typename F>
bool Evictor::evict_all_but(F&& stays) {
  std::vector<Value*> values;
  space_.for_each_block([&](const Block& block) {
    if (block.is_free() || !space_.is_movable(block.value) || stays(block.value)) return;
    values.push_back(block.value);
  });
  bool any = false;
  for (Value* value : values) any |= evict(value);
  return any;
}

}  // namespace coop
