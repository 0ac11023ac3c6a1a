// A hash of words, one after the other; the same in every process.
#pragma once

#include <cstdint>

namespace coop {

inline uint64_t extended(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace coop
