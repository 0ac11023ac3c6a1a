#include "adapter/regions/region.h"

#include <ATen/ATen.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_numbers.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "adapter/call/handler.h"
#include "adapter/call/rng.h"
#include "adapter/call/running.h"
#include "adapter/dispatch/tensor_kinds.h"
#include "adapter/engine.h"
#include "adapter/errors.h"
#include "adapter/registry.h"

namespace py = pybind11;

namespace coop {

namespace {

// The arguments of coop::region.
enum Argument : int32_t { kRegion, kLayout, kRead, kWritten, kNumArguments };

const c10::OperatorHandle& region_op() {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("coop::region", "");
  return op;
}

thread_local int num_running = 0;

struct RunningScope {
  RunningScope() { ++num_running; }
  ~RunningScope() { --num_running; }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;
};

void add_results(const py::object& results, std::vector<at::Tensor>* tensors) {
  for (const py::handle result : results) {
    if (THPVariable_Check(result.ptr())) tensors->push_back(THPVariable_Unpack(result.ptr()));
  }
}

// The inputs of one call: tensors, which are read or written, and between them plain numbers, and
// generators as they are now: what recomputes random numbers in its backward graph draws from one.
struct Inputs {
  // False: one of them cannot be frozen.
  bool add_all(const Region& region, const py::list& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      PyObject* input = PyList_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i));
      if (THPVariable_Check(input)) {
        const at::Tensor& tensor = THPVariable_Unpack(input);
        if (!is_understood(*tensor.unsafeGetTensorImpl(), /*fake=*/false)) return false;
        (region.writes(i) ? written : read).push_back(tensor);
        layout.push_back(at::Tensor());
      } else if (input == Py_None) {
        layout.push_back(c10::IValue());
      } else if (PyBool_Check(input)) {
        layout.push_back(input == Py_True);
      } else if (THPUtils_checkLong(input)) {
        layout.push_back(THPUtils_unpackLong(input));
      } else if (PyFloat_Check(input)) {
        layout.push_back(PyFloat_AS_DOUBLE(input));
      } else if (THPGenerator_Check(input)) {
        generators.emplace_back(THPGenerator_Unwrap(input));
        layout.push_back(generators.back().copy());
      } else {
        return false;
      }
    }
    return true;
  }

  std::vector<at::Tensor> read;
  std::vector<at::Tensor> written;
  std::vector<RngState> generators;
  c10::impl::GenericList layout{c10::AnyType::get()};  // undefined tensors for tensors
};

class RegionInvocation final : public Invocation {
 public:
  RegionInvocation(c10::intrusive_ptr<Region> region, const py::list& list, Inputs inputs)
      : region_(std::move(region)), list_(list), inputs_(std::move(inputs)) {}

  void for_each_tensor(Visitor visit) const override {
    int32_t index = 0;
    for (const at::Tensor& tensor : inputs_.read) visit(tensor, kRead, index++);
    index = 0;
    for (const at::Tensor& tensor : inputs_.written) visit(tensor, kWritten, index++);
  }

  c10::IValue argument(size_t index) const override {
    switch (index) {
      case kRegion:
        return c10::IValue::make_capsule(region_);
      case kLayout:
        return inputs_.layout;
      case kRead:
        return inputs_.read;
      default:
        return inputs_.written;
    }
  }

  c10::Device device() const override {
    for (const std::vector<at::Tensor>* tensors : {&inputs_.read, &inputs_.written}) {
      for (const at::Tensor& tensor : *tensors) {
        if (tensor.is_cuda()) return tensor.device();
      }
    }
    return c10::kCPU;
  }

  void freeze(c10::SmallVectorImpl<c10::IValue>* arguments) const override {
    arguments->push_back(argument(kRegion));
    arguments->emplace_back(inputs_.layout);
    for (int i = kRead; i < kNumArguments; ++i) {
      arguments->emplace_back(c10::impl::GenericList(c10::TensorType::get()));
    }
  }

  void run(c10::DispatchKeySet) override {
    const PythonScope python;
    const int64_t failures = running().failed_allocations;
    try {
      results = lets_go_ ? region_->run_and_clear(list_) : region_->run(list_);
      add_results(results, &tensors_);
    } catch (const py::error_already_set&) {
      // An allocation that did not fit has come through Python.
      if (went_another_way(running(), failures)) throw BudgetExceeded(OutOfBudget(last_shortage()));
      throw;
    }
  }

  void for_each_result(ResultVisitor visit) const override {
    for (const at::Tensor& tensor : tensors_) visit(tensor);
  }

  bool wants_to_let_go() const override { return region_->lets_go(); }

  bool let_go(c10::function_ref<bool(size_t)> may_die) override {
    lets_go_ = true;
    for (size_t i = 0; i < inputs_.read.size(); ++i) {
      if (may_die(i)) inputs_.read[i].reset();
    }
    return true;
  }

  void reset() override {
    tensors_.clear();
    for (const RngState& generator : inputs_.generators) generator.restore();
    const PythonScope python;
    results = py::none();
  }

  py::object results;

 private:
  const c10::intrusive_ptr<Region> region_;
  const py::list& list_;
  Inputs inputs_;
  std::vector<at::Tensor> tensors_;  // among the results
  bool lets_go_ = false;
};

// No mode of Python's sees what a replay calls.
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(Tls::get_disabled_state()) {
    Tls::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() { Tls::set_disabled_state(before_); }
  NoTorchFunction(const NoTorchFunction&) = delete;
  NoTorchFunction& operator=(const NoTorchFunction&) = delete;

 private:
  using Tls = at::impl::PythonTorchFunctionTLS;
  const at::impl::TorchFunctionDisabledState before_;
};

// What a replay runs.
void run_again(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const torch::jit::Stack arguments = torch::jit::pop(*stack, kNumArguments);
  const auto region = c10::static_intrusive_pointer_cast<Region>(arguments[kRegion].toCapsule());
  const auto read = arguments[kRead].toTensorList();
  const auto written = arguments[kWritten].toTensorList();
  // As graphs are run, and whoever asks for the replay may run otherwise.
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  {
    const PythonScope python;
    const NoTorchFunction plain;
    py::list list;
    size_t num_read = 0;
    size_t num_written = 0;
    for (const c10::IValue& item : arguments[kLayout].toListRef()) {
      if (item.isTensor()) {
        const bool writes = region->writes(list.size());
        list.append(at::Tensor(writes ? written.get(num_written++) : read.get(num_read++)));
      } else if (item.isNone()) {
        list.append(py::none());
      } else if (item.isBool()) {
        list.append(item.toBool());
      } else if (item.isInt()) {
        list.append(item.toInt());
      } else if (item.isGenerator()) {
        list.append(item.toGenerator().clone());
      } else {
        list.append(item.toDouble());
      }
    }
    const int64_t failures = running().failed_allocations;
    try {
      add_results(region->run(list), &tensors);
    } catch (py::error_already_set& error) {
      if (went_another_way(running(), failures)) throw BudgetExceeded(OutOfBudget(last_shortage()));
      // Whoever asked for the replay may not be Python's.
      error.restore();
      python_error exception;
      exception.persist();
      throw exception;
    }
  }
  stack->emplace_back(std::move(tensors));
}

const OpInfo& make_info(const std::string& name, bool writes, bool has_results, double flops,
                        double bytes) {
  return add_op_info([&](OpInfo& info) {
    info.name = name;
    info.arguments = {ArgumentKind::kOther, ArgumentKind::kOther, ArgumentKind::kTensorList,
                      ArgumentKind::kTensorList};
    info.writes = std::vector<bool>(4);
    info.writes[3] = writes;
    info.has_writes = writes;
    info.num_results = 1;
    info.has_fresh_outputs = has_results;
    info.region = info.seeded = true;
    info.flops = FlopFormula::kRegion;
    info.expensive = flops > 0;
    info.region_flops = flops;
    info.region_bytes = bytes;
  });
}

}  // namespace

TORCH_LIBRARY(coop, m) {
  m.def("region(Any region, Any[] layout, Tensor[] read, Tensor(a!)[] written) -> Tensor[]");
  m.impl("region", c10::DispatchKey::CompositeExplicitAutograd,
         torch::CppFunction::makeFromBoxedFunction<&run_again>());
}

bool is_in_region() { return num_running > 0; }

Region::Region(py::object callable, const std::string& name, std::vector<int32_t> written,
               bool has_results, double flops, double bytes)
    : callable_(std::move(callable)),
      written_(std::move(written)),
      info_(make_info(name, !written_.empty(), has_results, flops, bytes)) {}

Region::~Region() {
  if (Py_IsInitialized() == 0) {
    callable_.release();
    return;
  }
  const PythonScope python;
  callable_ = py::object();
}

bool Region::writes(size_t position) const {
  return std::binary_search(written_.begin(), written_.end(), static_cast<int32_t>(position));
}

py::object Region::run(const py::list& inputs) const {
  const RunningScope scope;
  return callable_(inputs.attr("copy")());
}

py::object Region::run_and_clear(const py::list& inputs) {
  const RunningScope scope;
  py::object results = callable_(inputs);
  lets_go_ = true;
  return results;
}

py::object Region::call(const py::list& inputs) {
  const c10::impl::LocalDispatchKeySet thread = c10::impl::tls_local_dispatch_key_set();
  const bool seen = thread.included_.has(kOurKey) && !thread.excluded_.has(kOurKey);
  if (!seen) return callable_(inputs);
  Inputs taken;
  if (!taken.add_all(*this, inputs)) {
    // What it uses is kept, as its addresses are asked for (coop/guards.py).
    if (!std::exchange(warned_, true)) {
      TORCH_WARN(
          "coop: what the compiled graph " + info_.name +
          " uses stays in memory: one of its inputs is no plain tensor, number or generator");
    }
    return callable_(inputs);
  }
  RegionInvocation invocation(c10::intrusive_ptr<Region>::reclaim_copy(this), inputs,
                              std::move(taken));
  Engine* engine = active_engine(invocation);
  if (engine == nullptr) return callable_(inputs);
  const c10::DispatchKey backend =
      c10::computeDispatchKey(std::nullopt, std::nullopt, engine->memory().device());
  intercept(*engine, info_, region_op(), c10::DispatchKeySet(backend), invocation);
  inputs.attr("clear")();
  return std::move(invocation.results);
}

}  // namespace coop
