// A compiled graph as one operator.
//
// Note [Regions]
// What torch.compile makes of a forward or a backward graph is a callable of Python's: a list of
// inputs in, a list of results out. It allocates past the dispatcher and hands out addresses, so
// its own operators tell us nothing. While a budget is active coop/regions.py calls it through
// Region::call, which is the way of any other operator: inputs are brought back and locked, what is
// allocated inside is temporary until it returns, and its results get one recipe. A replay calls
// the same callable again: the recipe holds the region, so neither a recompilation nor the end of
// the compiled function changes what is replayed.
//
// Which inputs the graph writes is known when it is compiled (batch norm's statistics, optimizer
// states, saved tensors that the backward graph reuses as buffers). They are arguments of their
// own, written like those of any operator in place (Rules 5 to 7).
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "adapter/dispatch/op_info.h"

namespace coop {

class Region final : public torch::CustomClassHolder {
 public:
  // `written`: the inputs that it writes, by position, ascending. `flops`, `bytes`: what is inside,
  // 0 if that is not known. With the GIL.
  Region(pybind11::object callable, const std::string& name, std::vector<int32_t> written,
         bool has_results, double flops, double bytes);
  ~Region() override;

  // The callable's results. Where no engine sees this thread, it is just called. With the GIL.
  pybind11::object call(const pybind11::list& inputs);

  bool writes(size_t position) const;
  // Calls it with a copy of the list: callables clear the one that they get.
  pybind11::object run(const pybind11::list& inputs) const;
  // As torch does: inputs that nobody else holds die as soon as they were used.
  pybind11::object run_and_clear(const pybind11::list& inputs);
  // Whether it did not fit otherwise.
  bool lets_go() const { return lets_go_; }

  const OpInfo& info() const { return info_; }

 private:
  pybind11::object callable_;
  const std::vector<int32_t> written_;
  const OpInfo& info_;
  bool lets_go_ = false;
  bool warned_ = false;  // that its inputs cannot be frozen
};

// Whether a region runs on this thread. It knows addresses only for as long as it runs, and what it
// is given is locked as long.
bool is_in_region();

}  // namespace coop
