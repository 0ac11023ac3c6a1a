#include "adapter/dispatch/collectives.h"

#include <unordered_map>

namespace coop {

// Results come first in all of them. tests/adapter/test_collectives.py compares this with what
// torch has registered. Functional collectives (`_c10d_functional`) are made of these and of
// copies.
const Collective* find_collective(const std::string& base) {
  constexpr Collective kWrites{true, false};
  constexpr Collective kReads{false, false};
  static const auto* table = new std::unordered_map<std::string, Collective>{
      {"c10d::allgather_", kWrites},
      {"c10d::_allgather_base_", kWrites},
      {"c10d::allgather_coalesced_", kWrites},
      {"c10d::allgather_into_tensor_coalesced_", {true, true}},
      {"c10d::allreduce_", kWrites},
      {"c10d::allreduce_coalesced_", kWrites},
      {"c10d::alltoall_", kWrites},
      {"c10d::alltoall_base_", kWrites},
      {"c10d::barrier", kReads},
      {"c10d::broadcast_", kWrites},
      {"c10d::check_for_nan", kReads},
      {"c10d::gather_", kWrites},
      {"c10d::gather_into_tensor_", kWrites},  // of torch 2.15
      {"c10d::monitored_barrier_", kReads},
      {"c10d::recv_", kWrites},
      {"c10d::recv_any_source_", kWrites},
      {"c10d::reduce_", kWrites},
      {"c10d::reduce_scatter_", kWrites},
      {"c10d::_reduce_scatter_base_", kWrites},
      {"c10d::reduce_scatter_tensor_coalesced_", kWrites},
      {"c10d::scatter_", kWrites},
      {"c10d::send", kReads},
  };
  const auto found = table->find(base);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace coop
