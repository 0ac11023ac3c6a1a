#include "core/simulate/recipes.h"

#include <stdexcept>

namespace coop {

void SimulatedRecipe::replay(Host& host, Storage** made) {
  auto& simulator = static_cast<Simulator&>(host);
  Core& core = simulator.core_;
  simulator.check_patience();
  const Simulator::Running running(&simulator.repeatable_, true);
  uint64_t hash = mix(0, number);
  for (const Edge& edge : inputs) hash = mix(hash, simulator.cookie_of(*edge.value));
  const size_t num_fresh = op.outputs.size();
  std::vector<Storage*> scratch;  // in place of roots that the operator writes again
  try {
    for (size_t w = 0; w < roots.size(); ++w) {
      const int32_t input = w < written.size() ? written[w] : -1;
      Storage* memory = input >= 0 ? core.take_for_write(inputs[input].value, *this)
                                   : core.allocate(written_bytes[w], op.side);
      (roots[w] ? scratch.emplace_back() : made[num_fresh + w]) = memory;
    }
    simulator.run_memory(op, made, /*replaying=*/true);
  } catch (...) {
    for (size_t i = num_fresh; i < outputs.size(); ++i) {
      if (made[i] != nullptr) core.storage_died(std::exchange(made[i], nullptr));
    }
    for (Storage* storage : scratch) core.storage_died(storage);
    throw;
  }
  for (Storage* storage : scratch) core.storage_died(storage);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const uint64_t cookie = mix(hash, i + 1);
    if (cookie != expected[i]) throw std::logic_error("a replay read other content");
    if (made[i] != nullptr) simulator.set_cookie(*made[i]->value, cookie);
  }
  simulator.count_replay(index, op.cost);
}

void SavedCookie::save(Host& host, const Value& value) {
  cookie = static_cast<Simulator&>(host).cookie_of(value);
}

void SavedCookie::replay(Host& host, Storage** made) {
  auto& simulator = static_cast<Simulator&>(host);
  simulator.check_patience();
  made[0] = simulator.core_.allocate(outputs[0]->bytes, Side::kLeft);
  simulator.set_cookie(*made[0]->value, cookie);
}

}  // namespace coop
