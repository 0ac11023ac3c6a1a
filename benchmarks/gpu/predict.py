"""Predicted against measured step times: five models, four budgets each. Writes JSON.

    python -m benchmarks.gpu.predict --out predict.json                       # on the GPU
    python -m benchmarks.gpu.predict --device cpu --out predict.json          # tiny sizes, here

For each model one process has room for everything: it records a trace, and measures a step and
each operator of it. The simulator then runs the trace in smaller budgets, and one process each
measures a step there. Two predictions of that step, neither of which has seen a budget:

    predicted_ms           measured step without a limit x simulated overhead, where operators
                           take as long as they were measured to take without a limit
    predicted_ms_roofline  the same with the roofline's estimate of each operator: what
                           `coop plan` says, which needs no hardware

A process each, because a CUDA budget is chosen once. The next one imports torch meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import coop
from coop.simulate import Options, Simulation, peak_without_limit, simulate
from coop.trace import Trace, read_trace


@dataclass(frozen=True)
class Model:
    """One of benchmarks.gpu.cell."""

    on_cpu: str  # the network of benchmarks.models that stands for it there
    reserved_gib: float  # what plain torch reserves for it on an H200: docs/evaluation.md
    shares: tuple[float, ...]  # of that, or of the trace's peak on the CPU: the budgets
    imports: tuple[str, ...] = ()


MODELS = {
    "resnet50": Model("resnet50", 12.33, (0.8, 0.6, 0.5, 0.4), ("torchvision",)),
    "gpt2": Model("gpt3", 48.47, (0.8, 0.6, 0.5, 0.4), ("transformers.models.gpt2.modeling_gpt2",)),
    "bert": Model(
        "bert_large", 27.38, (0.8, 0.6, 0.5, 0.4), ("transformers.models.bert.modeling_bert",)
    ),
    "unet": Model("unet", 10.44, (0.9, 0.8, 0.7, 0.6)),
    "lstm": Model("bilstm_fused", 9.85, (0.8, 0.7, 0.6, 0.5)),
}
COUNTS = (
    "num_operators", "num_evictions", "num_replays", "num_searches", "search_ns", "replay_ns",
)  # fmt: skip
TIMED_STEPS = 3
# An operator's kernels wait this long for the next ones to be queued behind them.
HEAD_START_CYCLES = 2 * 10**8
# An operator of a trace is at most so many (views, mostly) behind the last one.
LOOK_AHEAD = 32


def make_step(model: str, device: str) -> Callable[[int], Any]:
    """A function that runs a training step."""
    if device == "cuda":
        from benchmarks.gpu.cell import TASKS

        make, batch = TASKS[model]
        return make(batch, False).step
    from benchmarks import models

    workload = models.get(MODELS[model].on_cpu, "tiny")
    network = workload.make_model(0)
    optimizer = workload.make_optimizer(network)

    def step(number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        workload.loss(network, workload.make_batch(number)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


class OperatorTimer(TorchDispatchMode):
    """The time of every operator: on the device's own clock, or CPU time."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.names: list[str] = []
        self.ends: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        self.names.append(schema.name + overload)
        begin = self.now()
        result = func(*args, **(kwargs or {}))
        self.ends.append((begin, self.now()))
        return result

    def now(self) -> Any:
        if self.device == "cpu":
            return time.process_time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def times_ns(self) -> list[float]:
        if self.device == "cpu":
            return [end - begin for begin, end in self.ends]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e6 for begin, end in self.ends]


def timed_operators(
    step: Callable[[int], Any], numbers: Sequence[int], device: str
) -> dict[str, Any]:
    """Names and times of the operators of a step, in order; medians of some steps."""
    times = []
    for number in numbers:
        if device == "cuda":  # so that the device never waits for Python: kernels alone are timed
            torch.cuda._sleep(HEAD_START_CYCLES)
        with OperatorTimer(device) as timer:
            step(number)
        times.append(timer.times_ns())
    return {
        "names": timer.names,
        "ns": [statistics.median(ns) for ns in zip(*times, strict=True)],
    }


def work(model: str, request: dict[str, Any]) -> dict[str, Any]:
    """One model in one budget, in this process; with a path for its trace, that and more."""
    device, warmup, steps = request["device"], request["warmup"], request["steps"]
    with contextlib.ExitStack() as stack:
        if device == "cuda":  # for the rest of the process: nothing has to be given back
            session = coop.install(request["budget"])
        else:
            torch.set_num_threads(1)
            session = stack.enter_context(coop.budget(request["budget"]))
        if request["trace"]:
            session.start_trace()
        torch.manual_seed(0)
        step = make_step(model, device)
        for number in range(warmup):
            step(number)
        first = warmup
        if request["trace"]:  # of the steps that the others measure; recording takes time too
            for number in range(warmup, warmup + steps):
                step(number)
            session.save_trace(request["trace"], comment=model)
            first += steps
        before = session.stats()
        times = []
        for number in range(first, first + steps):
            begin = _now(device)
            step(number)
            times.append((_now(device) - begin) * 1e3)
        stats = session.stats()
        timed = range(first + steps, first + steps + TIMED_STEPS)
        operators = timed_operators(step, timed, device) if request["trace"] else None
        del step
    per_step = {key: (getattr(stats, key) - getattr(before, key)) / steps for key in COUNTS}
    result = {"ms": statistics.median(times), "ms_spread": [min(times), max(times)], **per_step}
    return result if operators is None else {**result, "operators": operators}


def _now(device: str) -> float:
    """Seconds, when the device is done; on the CPU, which others use too, CPU time."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


class Worker:
    """A process for one measurement. It imports at once, and starts CUDA when it is asked."""

    def __init__(self, model: str, device: str) -> None:
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        command = f"-m benchmarks.gpu.predict --worker {model} --device {device}"
        self.process = subprocess.Popen(
            [sys.executable, *command.split()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Its result, or what went wrong."""
        try:
            out, _ = self.process.communicate(json.dumps(request), timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.end()
            return {"error": f"took longer than {limit_s:g} s"}
        if self.process.returncode:
            self.said.seek(0)
            lines = self.said.read().strip().splitlines()
            told = next((ln for ln in reversed(lines) if "Error" in ln), "?")[:300]
            return {"error": f"exit code {self.process.returncode}: {told}"}
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result

    def end(self) -> None:
        """Without a result."""
        self.process.kill()
        self.process.communicate()


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
    steps: Sequence[Sequence[tuple[int, str, int]]], timed: dict[str, Any]
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


def most_of_the_time(
    step: Sequence[tuple[int, str, int]], times: dict[int, float]
) -> list[dict[str, Any]]:
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
) -> dict[str, Any]:
    """What the simulator says of the measured steps."""
    costs = result.steps[warmup:]
    compute_ns = sum(step.compute_ns for step in costs)
    replay_ns = sum(step.replay_ns for step in costs)
    numbers = [number for step in steps[warmup:] for number, _, _ in step]
    once_ns = sum(times[number] for number in numbers)
    again_ns = sum(result.num_replays[number] * times[number] for number in numbers)
    return {
        "predicted_ms": full_ms * (1 + again_ns / once_ns),
        "predicted_ms_roofline": full_ms * (1 + replay_ns / compute_ns),
        "roofline_ms": (compute_ns + replay_ns) / len(costs) / 1e6,
        "predicted_evictions": sum(step.num_evictions for step in costs) / len(costs),
        "predicted_replays": sum(step.num_replays for step in costs) / len(costs),
    }


def predict(
    model: str, args: argparse.Namespace, workers: Iterator[Worker], folder: Path
) -> Iterator[dict[str, Any]]:
    """What is known of the model, after every measurement."""
    path = folder / f"{model}.jsonl.gz"
    ample = "90%" if args.device == "cuda" else "8GiB"
    request = {"device": args.device, "warmup": args.warmup, "steps": args.steps, "trace": ""}
    full = next(workers).ask({**request, "budget": ample, "trace": str(path)}, args.limit)
    if "error" in full:
        for _ in MODELS[model].shares:
            next(workers).end()
        yield {"model": model, **full}
        return
    trace = read_trace(path)
    steps = operators_of_steps(path)
    times, full["found_operators"] = measured_times(steps[args.warmup :], full.pop("operators"))
    rows: list[dict[str, Any]] = []
    answer = {
        "model": model,
        "peak_bytes": peak_without_limit(trace),
        "num_operators": trace.num_operators,
        "full": full,
        "most_of_the_time": most_of_the_time(steps[-1], times),
        "rows": rows,
    }
    for share, budget in budgets(model, trace, args.device):
        result = simulate(trace, budget, Options(alignment=trace.header.alignment))
        row: dict[str, Any] = {
            "share": share,
            "budget_bytes": budget,
            "predicted_fits": result.fitted,
            "measured": next(workers).ask({**request, "budget": budget}, args.limit),
        }
        if result.fitted:
            row |= prediction(result, full["ms"], args.warmup, steps, times)
            if measured_ms := row["measured"].get("ms"):
                row["error"] = row["predicted_ms"] / measured_ms - 1
                row["error_roofline"] = row["predicted_ms_roofline"] / measured_ms - 1
        rows.append(row)
        print(model, json.dumps(row), file=sys.stderr, flush=True)
        yield answer


def budgets(model: str, trace: Trace, device: str) -> list[tuple[float, int]]:
    """Shares and bytes."""
    known = MODELS[model]
    on_cuda = device == "cuda"
    whole = known.reserved_gib * 2**30 if on_cuda else peak_without_limit(trace)
    unit = 2**20 if on_cuda else 2**12
    return [(share, int(share * whole) // unit * unit) for share in known.shares]


def started(models: Sequence[str], device: str) -> Iterator[Worker]:
    """For every measurement a process; the next one starts when one is taken."""
    coming = [model for model in models for _ in range(1 + len(MODELS[model].shares))]
    worker = Worker(coming[0], device)
    for model in [*coming[1:], None]:
        taken, worker = worker, Worker(model, device) if model is not None else worker
        yield taken


def mean_error(results: Sequence[dict[str, Any]], key: str) -> float | None:
    """Of the absolute values; None without any."""
    errors = [abs(row[key]) for model in results for row in model.get("rows", []) if key in row]
    return statistics.fmean(errors) if errors else None


def main() -> int:
    """Everything, or with --worker one measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,...")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60, help="seconds for one measurement")
    parser.add_argument("--out", type=Path, default=Path("predict.json"))
    parser.add_argument("--worker", choices=MODELS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        # Every optimizer imports dynamo when it is made.
        more = MODELS[args.worker].imports if args.device == "cuda" else ()
        for module in ("torch._dynamo", *more):
            importlib.import_module(module)
        print(json.dumps(work(args.worker, json.load(sys.stdin))), flush=True)
        return 0
    names = args.models.split(",")
    done: list[dict[str, Any]] = []
    workers = started(names, args.device)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for answer in predict(name, args, workers, Path(folder)):
                results = [*done, answer]
                summary = {
                    "device": args.device,
                    "mean_absolute_error": mean_error(results, "error"),
                    "mean_absolute_error_roofline": mean_error(results, "error_roofline"),
                    "models": results,
                }
                args.out.write_text(json.dumps(summary, indent=1) + "\n")
            done.append(answer)
    print({key: value for key, value in summary.items() if key != "models"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
