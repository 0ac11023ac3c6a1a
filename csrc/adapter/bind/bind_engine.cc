// Python's view of the engine.
#include "adapter/bind/bind_engine.h"

#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <limits>
#include <set>

#include "adapter/bind/bind_core.h"
#include "adapter/bind/bind_errors.h"
#include "adapter/call/boxed_invocation.h"
#include "adapter/call/parts.h"
#include "adapter/dispatch/fallback.h"
#include "adapter/dispatch/profiling.h"
#include "adapter/dispatch/tensor_kinds.h"
#include "adapter/engine.h"
#include "adapter/errors.h"
#include "adapter/registry.h"
#include "adapter/storage/cpu_arena.h"
#include "adapter/storage/mapped_file.h"
#include "adapter/storage/meta_arena.h"
#include "adapter/trace/source.h"
#ifdef COOP_CUDA
#include "cuda/allocator.h"
#include "cuda/memory.h"
#endif

namespace py = pybind11;

namespace coop {

namespace {

// Of a tensor or a torch.UntypedStorage; null when a tensor has none of its own.
c10::StorageImpl* find_storage(py::handle object) {
  if (THPVariable_Check(object.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
    return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  }
  return torch::createStorage(object.ptr()).unsafeGetStorageImpl();
}

c10::StorageImpl* storage_of(py::handle object) {
  c10::StorageImpl* impl = find_storage(object);
  if (impl == nullptr) {
    throw py::type_error("coop: the tensor has no storage of its own (sparse or symbolic)");
  }
  return impl;
}

// Reasons are known by their addresses, and outlive every engine. With the GIL.
const char* interned(const std::string& reason) {
  static auto* const reasons = new std::set<std::string>();
  return reasons->insert(reason).first->c_str();
}

// Errors of the core that do not pass through an operator.
template <typename F>
auto translated(const char* what, F&& f) {
  try {
    py::gil_scoped_release release;
    return f();
  } catch (const OutOfBudget& error) {
    throw_out_of_budget(what, error.replaying, error.shortage);
  } catch (const BudgetExceeded& error) {
    throw_out_of_budget(what, error.replaying, error.shortage);
  }
}

// Whether we see the operators that it runs; either way, what it allocates is in the budget.
py::object call(const py::function& f, const py::args& args, const py::kwargs& kwargs, bool seen) {
  const c10::DispatchKeySet ours(kOurKey);
  const auto thread = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard guard(
      seen ? thread.included_ | ours : thread.included_,
      seen ? thread.excluded_ - ours : thread.excluded_ | ours);
  return f(*args, **kwargs);
}

torch::jit::Stack make_stack(const c10::OperatorHandle& op, const py::tuple& args,
                             const py::dict& kwargs) {
  torch::jit::Stack stack;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const py::str key(arguments[i].name());
    if (i >= args.size() && !kwargs.contains(key)) {
      stack.push_back(arguments[i].default_value().value_or(c10::IValue()));
      continue;
    }
    const py::object value = i < args.size() ? py::object(args[i]) : py::object(kwargs[key]);
    // Torch hands over the number in `x + 1` as it is, although the schema wants a tensor.
    const bool number =
        arguments[i].type()->kind() == c10::TypeKind::TensorType && !THPVariable_Check(value.ptr());
    stack.push_back(number ? c10::IValue() : torch::jit::toIValue(value, arguments[i].type()));
  }
  return stack;
}

// Of the indices of an operator's lists; empty: it is run at once.
std::vector<std::pair<int64_t, int64_t>> find_parts_of(Engine& engine, const std::string& name,
                                                       const std::string& overload,
                                                       const py::tuple& args,
                                                       const py::dict& kwargs) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  torch::jit::Stack stack = make_stack(op, args, kwargs);
  std::vector<std::pair<int64_t, int64_t>> result;
  const BoxedInvocation invocation(op_info(op), op, &stack);
  for (const Part& part : find_parts(engine, op_info(op), op, invocation)) {
    result.emplace_back(part.begin, part.end);
  }
  return result;
}

py::object dispatch_fake(Engine& engine, const std::string& name, const std::string& overload,
                         const py::tuple& args, const py::dict& kwargs, const py::function& run) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  torch::jit::Stack stack = make_stack(op, args, kwargs);
  py::object result = py::none();
  intercept_fake(engine, op, &stack, [&](torch::jit::Stack* running) {
    result = run();
    const auto& returns = op.schema().returns();
    torch::jit::drop(*running, op.schema().arguments().size());
    for (size_t i = 0; i < returns.size(); ++i) {
      const py::object item =
          returns.size() == 1 ? result : py::object(result.cast<py::tuple>()[i]);
      running->push_back(torch::jit::toIValue(item, returns[i].type()));
    }
  });
  return result;
}

}  // namespace

void bind_engine(py::module_& m) {
  m.def("allow_replay", [](const std::string& name) {
    if (allow_replay(name)) return;
    throw py::value_error("coop.allow_replay: " + name +
                          " is a collective, which is never replayed: the other processes would "
                          "not take part");
  });
  m.def("set_thread_enabled", &set_thread_enabled);
  m.def("is_thread_enabled", &is_thread_enabled);
  m.def("set_profiling", &set_profiling);
  m.def("set_meta_counts", &set_meta_counts);
  m.def("resize_meta",
        [](py::handle storage, Bytes bytes) { resize_meta(*storage_of(storage), bytes); });
  m.def("call_seen", [](const py::function& f, const py::args& args, const py::kwargs& kwargs) {
    return call(f, args, kwargs, /*seen=*/true);
  });
  m.def("call_unseen", [](const py::function& f, const py::args& args, const py::kwargs& kwargs) {
    return call(f, args, kwargs, /*seen=*/false);
  });
  m.def("begin_coalescing", &InFlight::begin_coalescing);
  m.def("end_coalescing", &InFlight::end_coalescing);
  m.def("before_fork", &before_fork);
  m.def("after_fork_in_parent", &after_fork);
  m.def("after_fork_in_child", [] {
    after_fork();
    // The arena is the parent's; a copy of it must not be managed twice.
    set_thread_enabled(false);
    set_active_engine(c10::kCPU, nullptr);
  });

  py::class_<DeviceProfile>(m, "DeviceProfile")
      .def(py::init([](double flops, double half_flops, double bytes, double launch_ns) {
             return DeviceProfile{flops, half_flops, bytes, launch_ns};
           }),
           py::arg("flops_per_ns"), py::arg("half_flops_per_ns"), py::arg("bytes_per_ns"),
           py::arg("launch_ns"));

  py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
      .def_static(
          "cpu",
          [](const Config& config, const DeviceProfile& profile, bool measure, bool paranoid,
             const std::string& host_dir) {
            install_cpu_allocator();
            EngineConfig engine_config{config, profile, measure, paranoid};
            if (config.host_bytes > 0) {
              engine_config.host_memory = make_mapped_file(host_dir, config.host_bytes);
            }
            return std::make_shared<Engine>(engine_config, make_cpu_memory(config.budget));
          },
          py::arg("config"), py::arg("profile"), py::arg("measure") = false,
          py::arg("paranoid") = false, py::arg("host_dir") = "")
      .def_static(
          "meta",
          [](const Config& config, const DeviceProfile& profile) {
            install_meta_allocator();
            EngineConfig engine_config{config, profile};
            auto engine = std::make_shared<Engine>(engine_config, make_meta_memory(config.budget));
            set_active_engine(c10::kMeta, engine);
            return engine;
          },
          py::arg("config"), py::arg("profile"))
      .def("activate",
           [](std::shared_ptr<Engine> engine) {
             if (engine->memory().device().is_cpu()) set_active_engine(c10::kCPU, engine);
             set_thread_enabled(true);
           })
      .def("close",
           [](Engine& engine) {
             std::vector<std::string> lost;
             {
               py::gil_scoped_release release;
               lost = engine.close();
             }
             set_thread_enabled(false);
             // Torch goes on allocating from a GPU's arena.
             const c10::Device device = engine.memory().device();
             if (!device.is_cuda()) set_active_engine(device, nullptr);
             return lost;
           })
      .def("stats", [](Engine& engine) { return to_dict(engine.stats()); })
      .def("shortage",
           [](Engine& engine, Bytes bytes) { return explained(engine.shortage(bytes)); })
      .def("kept_operators", &Engine::list_kept_operators)
      .def("fail_placement",
           [](Engine& engine, int64_t n) {
             const EngineLock guard(engine);
             return engine.core().faults.fail_placement(n);
           })
      .def("fail_copy",
           [](Engine& engine, int64_t n) {
             const EngineLock guard(engine);
             return engine.core().faults.fail_copy(n);
           })
      .def("throw_in_copy",
           [](Engine& engine, int64_t n) {
             const EngineLock guard(engine);
             return engine.core().faults.throw_in_copy(n);
           })
      .def("set_link",
           [](Engine& engine, const LinkProfile& link) {
             const EngineLock guard(engine);
             engine.core().link.set(link);
           })
      .def("begin_step", &Engine::begin_step, py::call_guard<py::gil_scoped_release>())
      .def("end_step", &Engine::end_step, py::call_guard<py::gil_scoped_release>())
      // What these take is a tensor or a torch.UntypedStorage.
      .def("owns",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = find_storage(x);
             const EngineLock guard(engine);
             return impl != nullptr && engine.storages().find(impl) != nullptr;
           })
      .def("is_resident",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = storage_of(x);
             const EngineLock guard(engine);
             const Storage* storage = engine.storages().find(impl);
             return storage == nullptr || storage->value->is_resident();
           })
      .def("materialize",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = storage_of(x);
             translated("coop.materialize", [&] { engine.materialize(impl); });
           })
      .def("evict",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = storage_of(x);
             return translated("coop.evict", [&] { return engine.evict(impl); });
           })
      .def("evict_all", &Engine::evict_all, py::call_guard<py::gil_scoped_release>())
      .def("bring_back_roots", &Engine::bring_back_roots, py::call_guard<py::gil_scoped_release>())
      .def("keep",
           [](Engine& engine, py::handle x, const std::string& reason, bool for_good) {
             c10::StorageImpl* impl = storage_of(x);
             const char* why = interned(reason);
             translated("coop.keep", [&] { engine.keep(impl, why, for_good); });
           })
      .def("expose",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = find_storage(x);
             if (impl == nullptr) return;
             translated("sharing memory", [&] { engine.expose(impl); });
           })
      .def("before_unseen_write",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = storage_of(x);
             translated("a write without an operator", [&] { engine.before_unseen_write(impl); });
           })
      .def("give_back",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = storage_of(x);
             bool ours = false;
             translated("resizing to nothing", [&] { ours = engine.give_back(impl); });
             return ours;
           })
      .def("undefine", [](Engine& engine, py::handle x) { engine.undefine(storage_of(x)); })
      .def("is_kept",
           [](Engine& engine, py::handle x) {
             c10::StorageImpl* impl = storage_of(x);
             const EngineLock guard(engine);
             const Storage* storage = engine.storages().find(impl);
             return storage != nullptr && storage->keeps > 0;
           })
      .def("unkeep", [](Engine& engine, py::handle x) { engine.unkeep(storage_of(x)); })
      .def(
          "start_recording",
          [](Engine& engine, bool source_lines, bool estimate_temporaries) {
            engine.start_recording({source_lines, estimate_temporaries});
          },
          py::arg("source_lines"), py::arg("estimate_temporaries") = false)
      .def("stop_recording", [](Engine& engine) { return py::bytes(engine.stop_recording()); })
      // dispatch(name, overload, args, kwargs, run): an operator on fake tensors; `run()` runs it.
      .def("dispatch", &dispatch_fake)
      .def("find_parts", &find_parts_of)
      .def("part_bytes", &part_bytes)
      .def("header_bytes", [](Engine& engine) { return engine.storages().header_bytes(); })
      .def("device", [](Engine& engine) { return engine.memory().device().str(); })
      .def("is_valid",
           [](Engine& engine) {
             const EngineLock guard(engine);
             return engine.core().is_valid();
           })
      .def("reset_peak",
           [](Engine& engine) {
             const EngineLock guard(engine);
             engine.core().reset_peak();
           })
      .def("watch_growth",
           [](Engine& engine) {
             const EngineLock guard(engine);
             engine.core().reset_peak(Space::Peak::kGrowth);
           })
      .def("growth_bytes",
           [](Engine& engine) {
             const EngineLock guard(engine);
             return engine.core().space().growth();
           })
      .def("log_events", &Engine::log_events, py::arg("on"),
           py::arg("limit") = std::numeric_limits<size_t>::max())
      .def("num_dropped_events",
           [](Engine& engine) {
             const EngineLock guard(engine);
             return engine.core().events().num_dropped;
           })
      .def("keep_reasons",
           [](Engine& engine) {
             const EngineLock guard(engine);
             const std::vector<const char*>& reasons = engine.core().events().reasons;
             return std::vector<std::string>(reasons.begin(), reasons.end());
           })
      .def("measured_costs",
           [](Engine& engine) {
             const EngineLock guard(engine);
             return engine.costs().table();
           })
      .def("set_measured_costs",
           [](Engine& engine, const std::unordered_map<uint64_t, Cost>& costs) {
             const EngineLock guard(engine);
             engine.costs().set_table(costs);
           })
      .def("events", [](Engine& engine) {
        const EngineLock guard(engine);
        return events_as_array(engine.core().events());
      });
#ifdef COOP_CUDA
  m.attr("has_cuda") = true;
  m.def("install_cuda", [](py::object configure) {
    // configure(device) -> (Config, DeviceProfile, measure, paranoid); called when a device is
    // first used.
    auto* callable = new py::object(std::move(configure));
    install_cuda_allocator([callable](int device) {
      const PythonScope python;
      const py::tuple result = (*callable)(device);
      return EngineConfig{result[0].cast<Config>(), result[1].cast<DeviceProfile>(),
                          result[2].cast<bool>(), result[3].cast<bool>()};
    });
  });
  // Does not start torch's CUDA, after which the allocator could not be changed.
  m.def("cuda_memory", &cuda_memory);
  m.def("cuda_engine", [](int device) {
    Engine* engine = active_engine(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
    return engine == nullptr ? std::shared_ptr<Engine>() : engine->shared_from_this();
  });
  m.def("cuda_engines", &cuda_engines);
#else
  m.attr("has_cuda") = false;
#endif
  m.def("operator_info", [](const std::string& name, const std::string& overload) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!op) throw py::key_error(name + "." + overload);
    const OpInfo& info = op_info(*op);
    py::dict result;
    result["writes"] = info.writes;
    result["overwrites"] = info.overwrites;
    result["training_argument"] = info.training_argument;
    result["passes_through"] = info.passes_through;
    result["seeded"] = info.seeded;
    result["undefined"] = info.undefined;
    result["unknown"] = info.unknown;
    result["collective"] = info.collective != nullptr;
    result["refusal"] = info.refusal == nullptr ? py::object(py::none()) : py::str(info.refusal);
    return result;
  });
  // (key, whether it is a backend, whether the table has it, replayed, what state it has)
  m.def("tensor_kinds", [] {
    std::vector<std::tuple<std::string, bool, bool, bool, std::string>> result;
    for (KindRow& row : tensor_kinds()) {
      result.emplace_back(std::move(row.key), row.backend, row.listed, row.replayed,
                          std::move(row.state));
    }
    return result;
  });
  m.def("sources", [] {
    std::vector<std::tuple<std::string, std::string, int32_t, bool>> result;
    for (SourceLine& line : sources()) {
      result.emplace_back(std::move(line.file), std::move(line.function), line.line, line.backward);
    }
    return result;
  });
  m.def("operator_names", [] {
    std::vector<std::string> names;
    for (int32_t i = 0; i < num_op_infos(); ++i) names.push_back(op_info(i).name);
    return names;
  });
}

}  // namespace coop
