// Python's view of the core: traces, the simulator, and the pieces that tests compare with oracles.
#include "adapter/bind/bind_core.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "adapter/call/cost.h"
#include "core/simulate/json_lines.h"
#include "core/simulate/repeat.h"
#include "core/simulate/simulator.h"
#include "core/space/arena.h"

namespace py = pybind11;

namespace coop {

py::dict to_dict(const Stats& stats) {
  py::dict d;
  d["budget_bytes"] = stats.budget;
  d["held_bytes"] = stats.held;
  d["peak_bytes"] = stats.peak;
  d["needed_bytes"] = stats.needed;
  d["needed_is_estimate"] = stats.needed_is_estimate;
  d["free_bytes"] = stats.free;
  d["largest_free_bytes"] = stats.largest_free;
  d["num_operators"] = stats.num_operators;
  d["num_replays"] = stats.num_replays;
  d["num_evictions"] = stats.num_evictions;
  d["evicted_bytes"] = stats.evicted_bytes;
  d["num_searches"] = stats.num_searches;
  d["search_ns"] = stats.search_ns;
  d["searched_blocks"] = stats.searched_blocks;
  d["num_forced"] = stats.num_forced;
  d["fragmentation"] =
      stats.num_forced > 0 ? stats.fragmentation_sum / static_cast<double>(stats.num_forced) : 0.0;
  d["num_copies"] = stats.num_copies;
  d["copied_bytes"] = stats.copied_bytes;
  d["num_retries"] = stats.num_retries;
  d["moved_bytes"] = stats.moved_bytes;
  d["num_saves"] = stats.num_saves;
  d["saved_bytes"] = stats.saved_bytes;
  d["num_host_saves"] = stats.num_host_saves;
  d["host_saved_bytes"] = stats.host_saved_bytes;
  d["num_host_loads"] = stats.num_host_loads;
  d["host_loaded_bytes"] = stats.host_loaded_bytes;
  d["num_host_refusals"] = stats.num_host_refusals;
  d["host_wait_ns"] = stats.host_wait;
  d["host_held_bytes"] = stats.host_held;
  d["host_peak_bytes"] = stats.host_peak;
  d["host_bytes"] = stats.host_bytes;
  d["num_steps"] = stats.num_steps;
  d["num_schedules"] = stats.num_schedules;
  d["num_followed"] = stats.num_followed;
  d["num_left"] = stats.num_left;
  d["compute_ns"] = stats.compute_cost;
  d["replay_ns"] = stats.replay_cost;
  d["num_recipes"] = stats.num_recipes;
  d["num_values"] = stats.num_values;
  d["num_blocks"] = stats.num_blocks;
  return d;
}

py::dict to_dict(const Shortage& shortage) {
  py::dict d;
  d["wanted_bytes"] = shortage.wanted;
  d["budget_bytes"] = shortage.budget;
  d["held_bytes"] = shortage.held;
  d["largest_window_bytes"] = shortage.largest_window;
  d["sufficient_budget_bytes"] = shortage.sufficient_budget;
  d["root_bytes"] = shortage.root_bytes;
  d["kept_bytes"] = shortage.kept_bytes;
  d["locked_bytes"] = shortage.locked_bytes;
  d["temporary_bytes"] = shortage.temporary_bytes;
  d["refused_bytes"] = shortage.refused_bytes;
  d["host_bytes"] = shortage.host_bytes;
  d["kept"] = shortage.kept;
  return d;
}

py::array events_as_array(const EventLog& log) {
  const auto count = static_cast<py::ssize_t>(log.events.size());
  py::array_t<uint8_t> bytes(count * static_cast<py::ssize_t>(sizeof(Event)));
  if (count > 0) std::memcpy(bytes.mutable_data(), log.events.data(), bytes.nbytes());
  return bytes;
}

namespace {

Config make_config(Bytes budget, const std::string& policy, bool window, bool partition,
                   bool inplace, Bytes alignment, Bytes small_bytes, int32_t quiet_after,
                   const std::vector<std::string>& without, bool in_background, Bytes host_bytes,
                   const LinkProfile& link) {
  if (alignment <= 0 || budget < alignment) {
    throw py::value_error("a budget of " + std::to_string(budget) +
                          " bytes is smaller than one block");
  }
  Config config;
  config.budget = budget;
  config.policy = PolicyOptions::named(policy);
  config.partition = partition;
  config.inplace = inplace;
  config.alignment = alignment;
  config.small_bytes = small_bytes;
  config.quiet_after = quiet_after;
  config.in_background = in_background;
  config.host_bytes = host_bytes;
  config.link = link;
  // DTR and DTE as their authors run them.
  if (!config.policy.is_window()) {
    config.partition = config.inplace = false;
  } else if (!window) {
    config.policy = config.policy.without_window();
  }
  for (const std::string& name : without) config.policy = config.policy.without(name);
  return config;
}

void add_operator(Trace& trace, int32_t op, Cost cost, bool left, bool replayable,
                  std::vector<int64_t> inputs, std::vector<int64_t> outputs,
                  std::vector<Bytes> output_bytes, std::vector<int64_t> writes,
                  std::vector<int64_t> overwrites,
                  const std::vector<std::pair<int, int64_t>>& memory, int32_t line,
                  std::vector<std::pair<int64_t, Bytes>> roots, std::vector<int32_t> make_roots,
                  std::optional<bool> keep_old, double flops, double moved_bytes, bool half,
                  bool backward, bool undefined) {
  OperatorEntry& entry = trace.operators.emplace_back();
  entry.op = op;
  entry.cost = cost;
  entry.side = left ? Side::kLeft : Side::kRight;
  entry.replayable = replayable;
  entry.inputs = std::move(inputs);
  entry.outputs = std::move(outputs);
  entry.output_bytes = std::move(output_bytes);
  entry.writes = std::move(writes);
  entry.overwrites = std::move(overwrites);
  for (const auto& [kind, argument] : memory) {
    entry.memory.push_back({static_cast<MemoryStep::Kind>(kind), argument});
  }
  entry.roots = std::move(roots);
  entry.make_roots = std::move(make_roots);
  entry.keep_old = keep_old.value_or(entry.usually_keeps_old());
  entry.flops = flops;
  entry.moved_bytes = moved_bytes;
  entry.half = half;
  entry.backward = backward;
  entry.undefined = undefined;
  trace.tells_backward |= !backward;
  trace.entries.push_back(
      {EntryKind::kOperator, 0, 0, line, static_cast<int32_t>(trace.operators.size() - 1)});
}

py::dict result_dict(const SimulationResult& result) {
  py::dict d;
  d["fitted"] = result.fitted;
  d["stats"] = to_dict(result.stats);
  const bool short_of_bytes = !result.fitted && !result.gave_up;
  d["shortage"] = short_of_bytes ? py::object(to_dict(result.shortage)) : py::object(py::none());
  d["failed_entry"] = result.failed_entry;
  py::list steps;
  for (const Stats& step : result.steps) {
    steps.append(py::make_tuple(step.compute_cost, step.replay_cost, step.num_evictions,
                                step.num_replays, step.host_wait));
  }
  d["steps"] = steps;
  d["num_replays"] = result.num_replays;
  return d;
}

// Blocks as (offset, bytes, cost or None for a barrier, last access, held).
py::list list_blocks(const BlockMap& blocks) {
  py::list result;
  for (int c = 0; c < blocks.num_chunks(); ++c) {
    const BlockMap::Chunk& chunk = blocks.chunk(c);
    for (int i = 0; i < chunk.count; ++i) {
      const Block block = chunk.block(i);
      const py::object cost =
          block.cost == kBarrier ? py::object(py::none()) : py::object(py::float_(block.cost));
      result.append(
          py::make_tuple(block.offset, block.bytes, cost, block.last_access, !block.is_free()));
    }
  }
  return result;
}

// An arena with values of its own, for tests: blocks are known by their offset.
class TestArena {
 public:
  TestArena(Bytes bytes, Bytes alignment, bool best_fit)
      : arena_(0, bytes, alignment, best_fit ? Fit::kBest : Fit::kFromEnds) {}
  std::optional<Bytes> place(Bytes bytes, bool left) {
    const Bytes offset =
        arena_.place(&value_, arena_.rounded(bytes), left ? Side::kLeft : Side::kRight);
    if (offset == Arena::kNowhere) return std::nullopt;
    return offset;
  }
  void free(Bytes offset) { arena_.free(offset); }
  void set_block(Bytes offset, std::optional<Cost> cost, double last_access) {
    const BlockMap::Position position = arena_.find(offset);
    arena_.set_cost(position, cost.value_or(kBarrier));
    arena_.touch(position, last_access);
  }
  std::optional<std::tuple<Bytes, Bytes, uint64_t>> cheapest_window(Bytes bytes, double clock) {
    const bool rank = arena_.blocks().size() >= Scores::kManyBlocks;
    const Window window = find_cheapest_window(costs(clock), bytes, false, rank, memory_);
    if (rank) runners_up_.keep(rank_runners_up(bytes, window, memory_));
    if (window.empty()) return std::nullopt;
    return std::make_tuple(window.begin, window.end, window.score);
  }
  std::vector<std::tuple<Bytes, Bytes, double>> runners_up(Bytes bytes) {
    std::vector<std::tuple<Bytes, Bytes, double>> result;
    if (const RunnersUp* found = runners_up_.find(bytes)) {
      for (const RankedWindow& each : found->windows) {
        result.emplace_back(each.begin, each.end, each.key);
      }
    }
    return result;
  }
  std::optional<Bytes> cheapest_block(bool count_free_neighbours, double clock) {
    const Window window = find_cheapest_value(costs(clock), count_free_neighbours);
    if (window.empty()) return std::nullopt;
    return window.begin;
  }
  SearchCosts costs(double clock) const { return {arena_.blocks(), clock, memory_.locked}; }

  Arena arena_;
  SearchMemory memory_;
  RecentRunnersUp runners_up_;
  Value value_;
};

// A fence that a test passes.
class TestFence {
 public:
  void pass() { passed_ = true; }
  int num_waits() const { return num_waits_; }
  // For the core, which owns its fences; the test keeps this one.
  std::unique_ptr<Fence> view() {
    class View final : public Fence {
     public:
      explicit View(TestFence& fence) : fence_(fence) {}
      bool passed(bool wait) override {
        fence_.num_waits_ += wait && !fence_.passed_;
        return fence_.passed_ |= wait;
      }

     private:
      TestFence& fence_;
    };
    return std::make_unique<View>(*this);
  }

 private:
  bool passed_ = false;
  int num_waits_ = 0;
};

}  // namespace

void bind_core(py::module_& m) {
  py::class_<LinkProfile>(m, "LinkProfile")
      .def(py::init([](double out_bytes_per_second, double in_bytes_per_second, double latency_ns) {
             return LinkProfile{out_bytes_per_second / 1e9, in_bytes_per_second / 1e9, latency_ns};
           }),
           py::arg("out_bytes_per_second"), py::arg("in_bytes_per_second"), py::arg("latency_ns"));

  py::class_<Config>(m, "Config")
      .def(py::init(&make_config), py::arg("budget"), py::arg("policy") = "coop",
           py::arg("window") = true, py::arg("partition") = true, py::arg("inplace") = true,
           py::arg("alignment") = 64, py::arg("small_bytes") = 10 * 1024,
           py::arg("quiet_after") = 0, py::arg("without") = std::vector<std::string>(),
           py::arg("in_background") = false, py::arg("host_bytes") = 0,
           py::arg("link") = LinkProfile())
      .def_readonly("budget", &Config::budget);

  py::class_<Trace>(m, "Trace")
      .def(py::init<>())
      .def("add_operator", &add_operator, py::arg("op"), py::arg("cost"), py::arg("left"),
           py::arg("replayable"), py::arg("inputs"), py::arg("outputs"), py::arg("output_bytes"),
           py::arg("writes"), py::arg("overwrites"), py::arg("memory"), py::arg("line"),
           py::arg("roots") = std::vector<std::pair<int64_t, Bytes>>(),
           py::arg("make_roots") = std::vector<int32_t>(), py::arg("keep_old") = py::none(),
           py::arg("flops") = 0.0, py::arg("moved_bytes") = 0.0, py::arg("half") = false,
           py::arg("backward") = true, py::arg("undefined") = false)
      // A copy with the costs that another device would have.
      .def("priced",
           [](const Trace& trace, const DeviceProfile& profile) {
             Trace copy = trace;
             for (OperatorEntry& op : copy.operators) {
               op.cost = roofline(profile, op.flops, op.half, op.moved_bytes);
             }
             return copy;
           })
      .def("repeated",
           [](const Trace& trace, int64_t num_steps) {
             Repeated repeated = repeat_last_step(trace, num_steps);
             return std::make_pair(std::move(repeated.trace), std::move(repeated.origins));
           })
      .def("add",
           [](Trace& trace, int kind, int64_t storage, Bytes bytes, int32_t line) {
             trace.entries.push_back({static_cast<EntryKind>(kind), storage, bytes, line, 0});
           })
      // The lines of its file, but for the header.
      .def("json_lines",
           [](const Trace& trace, Bytes header_bytes, const std::vector<std::string>& op_names,
              const std::unordered_map<size_t, std::string>& sources) {
             JsonLines lines(header_bytes);
             for (size_t i = 0; i < trace.entries.size(); ++i) {
               const Entry& entry = trace.entries[i];
               if (entry.kind != EntryKind::kOperator) {
                 lines.add(entry);
                 continue;
               }
               const OperatorEntry& op = trace.operators[entry.operator_index];
               const auto source = sources.find(i);
               lines.add(op, op_names.at(op.op), source == sources.end() ? "" : source->second);
             }
             return py::bytes(lines.take());
           })
      .def("line", [](const Trace& trace, size_t entry) { return trace.entries.at(entry).line; })
      .def("__len__", [](const Trace& trace) { return trace.entries.size(); });

  m.def(
      "simulate",
      [](const Trace& trace, const Config& config, double most_replay) {
        SimulationResult result;
        {
          py::gil_scoped_release release;
          result = Simulator(config).run(trace, most_replay);
        }
        return result_dict(result);
      },
      py::arg("trace"), py::arg("config"),
      py::arg("most_replay") = std::numeric_limits<double>::infinity());

  py::class_<Simulator>(m, "Simulator")
      .def(py::init<const Config&>())
      // Applies the newest entry of the trace. False when it does not fit.
      .def(
          "apply_last",
          [](Simulator& simulator, const Trace& trace) {
            try {
              simulator.apply(trace, trace.entries.back());
              return true;
            } catch (const OutOfBudget&) {
              return false;
            }
          },
          py::keep_alive<1, 2>())
      .def(
          "run",
          [](Simulator& simulator, const Trace& trace) {
            return result_dict(simulator.run(trace));
          },
          py::keep_alive<1, 2>())
      .def("stats", [](Simulator& simulator) { return to_dict(simulator.core().stats()); })
      .def("shortage",
           [](Simulator& simulator, Bytes bytes) {
             return to_dict(simulator.core().space().shortage(bytes));
           })
      .def("is_resident", [](Simulator& simulator,
                             int64_t id) { return simulator.storage(id)->value->is_resident(); })
      .def("is_root",
           [](Simulator& simulator, int64_t id) { return simulator.storage(id)->value->is_root(); })
      .def("made_in_backward",
           [](Simulator& simulator, int64_t id) {
             return simulator.storage(id)->value->made_in_backward;
           })
      .def("offset",
           [](Simulator& simulator, int64_t id) { return simulator.storage(id)->value->offset; })
      .def("is_saved", [](Simulator& simulator,
                          int64_t id) { return simulator.storage(id)->value->is_saved(); })
      .def("can_leave", [](Simulator& simulator,
                           int64_t id) { return simulator.storage(id)->value->can_leave(); })
      .def("fail_placement", [](Simulator& simulator,
                                int64_t n) { return simulator.core().faults.fail_placement(n); })
      .def("fail_copy",
           [](Simulator& simulator, int64_t n) { return simulator.core().faults.fail_copy(n); })
      .def("throw_in_copy",
           [](Simulator& simulator, int64_t n) { return simulator.core().faults.throw_in_copy(n); })
      .def("cookie", &Simulator::cookie)
      .def(
          "free_after",
          [](Simulator& simulator, int64_t id, TestFence& fence) {
            simulator.free_after(id, fence.view());
          },
          py::keep_alive<1, 3>())
      .def("neighbourhood",
           [](Simulator& simulator, int64_t id, bool exact) {
             Scores& scores = simulator.core().scores();
             const Value* value = simulator.storage(id)->value;
             if (exact) return scores.exact_cost_of(value);
             scores.join_pending();
             return scores.sets_cost_of(value);
           })
      .def("blocks",
           [](Simulator& simulator) {
             simulator.core().scores().bring_up_to_date();
             return list_blocks(simulator.core().space().arena().blocks());
           })
      .def("is_valid", [](Simulator& simulator) { return simulator.core().is_valid(); })
      .def("log_events", [](Simulator& simulator, bool on) { simulator.core().log_events(on); })
      .def("events",
           [](Simulator& simulator) { return events_as_array(simulator.core().events()); });

  py::class_<TestFence>(m, "TestFence")
      .def(py::init<>())
      .def("pass_", &TestFence::pass)
      .def_property_readonly("num_waits", &TestFence::num_waits);
  m.def("policy_switches", &PolicyOptions::names);

  py::class_<TestArena>(m, "TestArena")
      .def(py::init<Bytes, Bytes, bool>(), py::arg("bytes"), py::arg("alignment"),
           py::arg("best_fit") = false)
      .def("place", &TestArena::place, py::arg("bytes"), py::arg("left"))
      .def("free", &TestArena::free)
      .def("set_block", &TestArena::set_block)
      .def("cheapest_window", &TestArena::cheapest_window)
      .def("runners_up", &TestArena::runners_up)
      .def("cheapest_block", &TestArena::cheapest_block)
      .def("blocks", [](TestArena& arena) { return list_blocks(arena.arena_.blocks()); })
      .def("held", [](TestArena& arena) { return arena.arena_.held(); })
      .def("free_bytes", [](TestArena& arena) { return arena.arena_.free_bytes(); })
      .def("largest_free", [](TestArena& arena) { return arena.arena_.largest_free(); })
      .def("peak", [](TestArena& arena) { return arena.arena_.peak(); })
      .def("is_valid", [](TestArena& arena) { return arena.arena_.is_valid(); });
}

}  // namespace coop
