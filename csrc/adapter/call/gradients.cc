#include "adapter/call/gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <typeinfo>

#include "adapter/call/invocation.h"
#include "adapter/engine.h"

namespace coop {

Backward look_at_backward() {
  using torch::autograd::AccumulateGrad;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return {};
  // Nothing derives from it, so that there is no need for a dynamic_cast.
  const torch::autograd::Node& running = *node;
  if (typeid(running) != typeid(AccumulateGrad)) return {true, {}};
  return {true, static_cast<const AccumulateGrad&>(running).variable};
}

void make_gradient_root(Engine& engine, const at::Tensor& leaf, const Invocation& invocation) {
  const at::Tensor* gradient = nullptr;
  invocation.for_each_result([&](const at::Tensor& result) { gradient = &result; });
  Core& core = engine.core();
  bool clean_up = false;
  {
    const ReplayLock guard(engine.locks());
    for (const at::Tensor* tensor : {&leaf, gradient}) {
      if (!tensor->defined() || !tensor->has_storage()) continue;
      Storage* storage = engine.storages().find(tensor->storage().unsafeGetStorageImpl());
      if (storage == nullptr) continue;
      if (Recorder* recorder = engine.recorder()) {
        recorder->stored(storage, /*gradient=*/tensor == gradient);
      }
      if (storage->value->is_lasting_root()) continue;
      try {
        core.materialize(storage);
      } catch (const OutOfBudget&) {
        continue;  // it stays recomputable
      }
      if (tensor == &leaf) {
        core.make_root(storage);
      } else {
        core.make_gradient(storage);
      }
    }
    clean_up = engine.recipes().is_full();
  }
  if (clean_up) engine.recipes().clean_up();
}

}  // namespace coop
