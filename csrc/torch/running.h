// What running an operator and replaying it have in common.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/ivalue.h>

#include "torch/engine.h"

namespace coop {

// Why a result is not recorded. Arrays, since they are known by their addresses.
inline constexpr char kOtherDevice[] = "it reads another device";
inline constexpr char kOtherStream[] = "it ran on another stream";
inline constexpr char kInput[] = "it copies an input into the arena";
inline constexpr char kForeign[] =
    "it reads memory that is not torch's own (a NumPy array, for example)";

// An operator runs: where its allocations go, that they are its own, and whether it is tried again
// when one does not fit.
class RunScope {
 public:
  RunScope(Side side, bool repeatable)
      : running_(running()),
        side_(running_.side),
        repeatable_(running_.repeatable),
        origin_(running_.origin) {
    running_.side = side;
    running_.repeatable = repeatable;
    ++running_.depth;
  }
  ~RunScope() {
    running_.side = side_;
    running_.repeatable = repeatable_;
    running_.origin = origin_;
    --running_.depth;
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  Running& running_;
  // As they were.
  const Side side_;
  const bool repeatable_;
  const Origin origin_;
};

template <typename F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor(), -1);
  } else if (value.isTensorList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    for (size_t i = 0; i < list.size(); ++i) f(list[i].toTensor(), static_cast<int32_t>(i));
  } else if (value.isList()) {
    const auto& list = value.toListRef();
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].isTensor()) {
        f(list[i].toTensor(), static_cast<int32_t>(i));
      } else if (list[i].isNone()) {
        f(at::Tensor(), static_cast<int32_t>(i));
      }
    }
  }
}

// An allocation failed and the operator went on with something else: its results need not be the
// same bits. Where cuDNN's benchmark mode chooses by trying, they never are.
inline bool went_another_way(int64_t failures) {
  return running().failed_allocations != failures && !at::globalContext().benchmarkCuDNN();
}

}  // namespace coop
