#include "adapter/dispatch/separable.h"

#include <string>
#include <unordered_set>

namespace coop {

namespace {

// Optimizers' updates. (Their functional forms are decompositions' alone.)
bool is_update(const std::string& base) {
  static const auto* table = new std::unordered_set<std::string>{
      "aten::_fused_adagrad_",
      "aten::_fused_adam_",
      "aten::_fused_adamw_",
      "aten::_fused_sgd_",
      // What it writes besides is the same, whichever index finds it.
      "aten::_amp_foreach_non_finite_check_and_unscale_",
  };
  return table->count(base) > 0;
}

// Element by element, or (norm) tensor by tensor. In place too.
bool is_foreach(std::string base) {
  constexpr const char* kPrefix = "aten::_foreach_";
  if (base.rfind(kPrefix, 0) != 0) return false;
  base.erase(0, std::string(kPrefix).size());
  if (!base.empty() && base.back() == '_') base.pop_back();
  static const auto* table = new std::unordered_set<std::string>{
      "abs",  "add",  "addcdiv", "addcmul", "ceil",  "clamp_max", "clamp_min",  "clone",
      "copy", "div",  "exp",     "floor",   "lerp",  "log",       "maximum",    "minimum",
      "mul",  "neg",  "norm",    "pow",     "round", "rsqrt",     "reciprocal", "sigmoid",
      "sign", "sqrt", "sub",     "tanh",    "trunc", "zero",
  };
  return table->count(base) > 0;
}

}  // namespace

bool is_separable(const c10::FunctionSchema& schema) {
  const std::string& base = schema.name();
  if (!is_update(base) && !is_foreach(base)) return false;
  for (const c10::Argument& argument : schema.arguments()) {
    // One tensor with a number for each index; results that are given.
    if (argument.name() == "scalars" && argument.type()->kind() == c10::TypeKind::TensorType) {
      return false;
    }
    if (argument.is_out()) return false;
  }
  return true;
}

}  // namespace coop
