"""Predicted against measured step times.

For each network one process has room for everything: it records a trace, and measures a step and
each operator of it. The simulator then runs the trace in smaller budgets, and one process each
measures a step there. Two predictions of that step, neither of which has seen a budget:

    step_ms           measured step without a limit x simulated overhead, where operators take as
                      long as they were measured to take without a limit
    step_ms_roofline  the same with the roofline's estimate of each operator: what `coop plan` says,
                      which needs no hardware
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.cells import Cell
from benchmarks.harness.runner import Runner
from coop.simulate import Options, Simulation, peak_without_limit, simulate
from coop.trace import read_trace

__all__ = ["mean_error", "predict"]

Row = dict[str, Any]

# Budgets as shares of what plain torch reserves; on the CPU of the trace's peak.
SHARES = (0.8, 0.6, 0.5, 0.4)
# Networks that do not fit the smallest of them.
OTHER_SHARES = {"unet": (0.9, 0.8, 0.7, 0.6), "lstm": (0.8, 0.7, 0.6, 0.5)}
OTHER_SHARES["bilstm_fused"] = OTHER_SHARES["lstm"]
# An operator of a trace is at most so many (views, mostly) behind the last one.
LOOK_AHEAD = 32
AMPLE_BYTES = 2**33  # on the CPU
AMPLE_SHARE = "90%"  # of the free memory of a GPU


def predict(runner: Runner, names: Sequence[str]) -> None:
    """Measures and predicts; the trace of a network is recorded anew where rows are missing."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            shares = OTHER_SHARES.get(name, SHARES)
            cells = [Cell(name, "coop", "predicted", share) for share in shares]
            if runner.missing(cells):
                _predict(runner, name, cells, Path(folder) / f"{name}.jsonl.gz")


def _predict(runner: Runner, name: str, cells: Sequence[Cell], path: Path) -> None:
    settings = runner.results.header["settings"]
    warmup: int = settings["warmup"]
    on_cuda = settings["device"] == "cuda"
    plain = runner.measure(Cell(name, "plain", "plain"))
    full_cell = Cell(name, "coop", "traced")
    ample: int | str = AMPLE_SHARE if on_cuda else AMPLE_BYTES
    full = runner.ask(full_cell, ample, trace=str(path))
    full["budget_bytes"] = full.get("stats", {}).get("budget_bytes")
    if plain["status"] != "ok" or full["status"] != "ok":
        full.pop("operators", None)
        runner.add(full_cell, full)
        return
    trace = read_trace(path)
    steps = operators_of_steps(path)
    times, full["found_operators"] = measured_times(steps[warmup:], full.pop("operators"))
    full["trace"] = {
        "peak_bytes": peak_without_limit(trace),
        "num_operators": trace.num_operators,
    }
    full["most_of_the_time"] = most_of_the_time(steps[-1], times)
    full = runner.add(full_cell, full)
    # The CPU is shared with others, so that there it is CPU time that counts.
    field = "step_ms" if on_cuda else "step_cpu_ms"
    whole_bytes = plain["peak_reserved_bytes"] if on_cuda else full["trace"]["peak_bytes"]
    unit = 2**20 if on_cuda else 2**12
    for cell in runner.missing(cells):
        assert cell.ratio is not None
        budget_bytes = int(cell.ratio * whole_bytes) // unit * unit
        result = simulate(trace, budget_bytes, Options(alignment=trace.header.alignment))
        row = runner.ask(cell, budget_bytes)
        row["predicted"] = {"fits": False}
        if result.fitted:
            row["predicted"] = prediction(result, full[field]["median"], warmup, steps, times)
            if row["status"] == "ok":
                measured_ms = row[field]["median"]
                row["error"] = row["predicted"]["step_ms"] / measured_ms - 1
                row["error_roofline"] = row["predicted"]["step_ms_roofline"] / measured_ms - 1
        runner.add(cell, row)


def operators_of_steps(path: Path) -> list[list[tuple[int, str, int]]]:
    """By step of the trace: number, name and estimated cost of its operators."""
    steps: list[list[tuple[int, str, int]]] = [[]]
    number = 0
    with gzip.open(path, "rt") as file:
        for line in file:
            entry = json.loads(line)
            if "op" in entry and entry["op"].startswith("profiler::"):
                number += 1
            elif "op" in entry:
                steps[-1].append((number, entry["op"], entry["cost_ns"]))
                number += 1
            elif entry.get("step") == "end":
                steps.append([])
    return steps[:-1]


def measured_times(
    steps: Sequence[Sequence[tuple[int, str, int]]], timed: Row
) -> tuple[dict[int, float], float]:
    """By number of the operator, what it was measured to take; and how many of them were found.

    A trace has the operators that make or write a storage, and the measurement has views too, so
    that a step of the trace is found in it in order. Torch chooses a few operators otherwise while
    somebody watches (not in place): those that are not found cost what the roofline says, times
    what the others take for what it says.
    """
    names = [_plain(name) for name in timed["names"]]
    times: dict[int, float] = {}
    missing: dict[int, int] = {}
    estimated_ns = 0
    for step in steps:
        at = 0
        for number, name, cost_ns in step:
            try:
                found = names.index(_plain(name), at, at + LOOK_AHEAD)
            except ValueError:
                missing[number] = cost_ns
                continue
            times[number] = timed["ns"][found]
            estimated_ns += cost_ns
            at = found + 1
    scale = sum(times.values()) / estimated_ns
    found_share = len(times) / (len(times) + len(missing))
    return times | {number: cost_ns * scale for number, cost_ns in missing.items()}, found_share


def _plain(name: str) -> str:
    """Without its overload, and whether it works in place."""
    return name.partition(".")[0].rstrip("_")


def most_of_the_time(step: Sequence[tuple[int, str, int]], times: dict[int, float]) -> list[Row]:
    """The operators that take longest in a step, with the roofline's estimate beside it."""
    measured: Counter[str] = Counter()
    estimated: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for number, name, cost_ns in step:
        measured[name] += times[number]  # type: ignore[assignment]
        estimated[name] += cost_ns
        calls[name] += 1
    return [
        {"op": name, "calls": calls[name], "ms": ns / 1e6, "roofline_ms": estimated[name] / 1e6}
        for name, ns in measured.most_common(12)
    ]


def prediction(
    result: Simulation,
    full_ms: float,
    warmup: int,
    steps: Sequence[Sequence[tuple[int, str, int]]],
    times: dict[int, float],
) -> Row:
    """What the simulator says of the measured steps."""
    costs = result.steps[warmup:]
    compute_ns = sum(step.compute_ns for step in costs)
    replay_ns = sum(step.replay_ns for step in costs)
    numbers = [number for step in steps[warmup:] for number, _, _ in step]
    once_ns = sum(times[number] for number in numbers)
    again_ns = sum(result.num_replays[number] * times[number] for number in numbers)
    return {
        "fits": True,
        "step_ms": full_ms * (1 + again_ns / once_ns),
        "step_ms_roofline": full_ms * (1 + replay_ns / compute_ns),
        "roofline_ms": (compute_ns + replay_ns) / len(costs) / 1e6,
        "num_evictions": sum(step.num_evictions for step in costs),
        "num_replays": sum(step.num_replays for step in costs),
    }


def mean_error(rows: Iterable[Row], field: str) -> float | None:
    """Of the absolute values; None without any."""
    errors = [abs(row[field]) for row in rows if field in row]
    return statistics.fmean(errors) if errors else None
