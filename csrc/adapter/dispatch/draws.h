// Draws inside of an operator that takes no generator, from one of the caller's own.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace coop {

// Operators that run on this thread draw from `generator` where they are given none, those that run
// inside of others too. It outlives the scope.
class DrawScope {
 public:
  explicit DrawScope(const at::Generator& generator);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  const at::Generator* const outer_;
  const c10::impl::IncludeDispatchKeyGuard seen_;
};

}  // namespace coop
