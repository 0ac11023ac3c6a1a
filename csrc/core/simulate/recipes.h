// The ways back of simulated values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/simulate/entry.h"
#include "core/simulate/simulator.h"

namespace coop {

inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

struct SimulatedRecipe final : Recipe {
  SimulatedRecipe(const OperatorEntry& op, int32_t index, uint64_t number)
      : op(op), index(index), number(number) {}
  void replay(Host& host, Storage** made) override;

  const OperatorEntry& op;
  const int32_t index;           // of the operator in its trace
  const uint64_t number;         // of the execution
  std::vector<int32_t> written;  // for each write: its old value among the inputs, or -1
  std::vector<bool> roots;       // for each write and overwrite: it stays a root
  std::vector<Bytes> written_bytes;
  std::vector<uint64_t> expected;  // cookies of the outputs
};

struct SavedCookie final : SavedBytes {
  void save(Host& host, const Value& value) override;
  void replay(Host& host, Storage** made) override;

  uint64_t cookie = 0;
};

class Simulator::Running {
 public:
  Running(bool* repeatable, bool is_repeatable)
      : repeatable_(repeatable), previous_(std::exchange(*repeatable, is_repeatable)) {}
  ~Running() { *repeatable_ = previous_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  bool* const repeatable_;
  const bool previous_;
};

}  // namespace coop
