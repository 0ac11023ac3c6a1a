// What a value's copy in main memory is: the other way back.
#pragma once

#include <cstdint>

namespace coop {

// In this order: from kPossible on, a value can leave by it.
enum class HostState : uint8_t {
  kNever,     // there is no pool, or somebody besides operators may use its memory
  kRefused,   // there was no room; there may be some later
  kPossible,  // its bytes are saved when it leaves
  kSaved,     // they are in the pool, and nothing has written the value since
};

}  // namespace coop
