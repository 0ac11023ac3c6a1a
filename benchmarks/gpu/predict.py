"""Predicted against measured step times: five models, four budgets each. Writes JSON.

    python -m benchmarks.gpu.predict --out predict.json                       # on the GPU
    python -m benchmarks.gpu.predict --device cpu --out predict.json          # tiny sizes, here

For each model one process records a trace where there is room for everything, and measures a step
there; the planner then predicts the step at smaller budgets from the trace alone, and one process
each measures it. Predicted time = measured time without a limit x predicted overhead; what the
roofline alone says is written beside it. A process each, because a CUDA budget is chosen once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import coop
from coop.planner import smallest_budget
from coop.simulate import Options, peak_without_limit, simulate
from coop.trace import read_trace

# Name in benchmarks.gpu.cell: the network of benchmarks.models that stands for it on the CPU.
MODELS = {
    "resnet50": "resnet50",
    "gpt2": "gpt3",
    "bert": "bert_large",
    "unet": "unet",
    "lstm": "bilstm_fused",
}
# Between the smallest budget and the peak.
POSITIONS = (0.75, 0.5, 0.3, 0.15)
COUNTS = ("num_operators", "num_evictions", "num_replays", "num_searches", "replay_ns")


def make_step(model: str, device: str) -> Callable[[int], Any]:
    """A function that runs a training step."""
    if device == "cuda":
        from benchmarks.gpu.cell import TASKS

        make, batch = TASKS[model]
        return make(batch, False).step
    from benchmarks import models

    workload = models.get(MODELS[model], "tiny")
    network = workload.make_model(0)
    optimizer = workload.make_optimizer(network)

    def step(number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        workload.loss(network, workload.make_batch(number)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def work(args: argparse.Namespace) -> dict[str, Any]:
    """One model in one budget, in this process: a trace, or times."""
    times = []
    with contextlib.ExitStack() as stack:
        if args.device == "cuda":  # for the rest of the process: nothing has to be given back
            session = coop.install(args.budget)
        else:
            session = stack.enter_context(coop.budget(args.budget))
        if args.trace:
            session.start_trace()
        torch.manual_seed(0)
        step = make_step(args.worker, args.device)
        for number in range(args.warmup):
            step(number)
        if args.trace:
            session.save_trace(args.trace, comment=args.worker)
        before = session.stats()
        for number in range(args.warmup, args.warmup + args.steps):
            _synchronize(args.device)
            begin = time.perf_counter()
            step(number)
            _synchronize(args.device)
            times.append((time.perf_counter() - begin) * 1e3)
        stats = session.stats()
        del step
    times.sort()
    per_step = {key: (getattr(stats, key) - getattr(before, key)) / args.steps for key in COUNTS}
    return {"ms": times[len(times) // 2], "ms_spread": [times[0], times[-1]], **per_step}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def run_worker(model: str, budget: int | str, args: argparse.Namespace, *more: str) -> Any:
    """Its result, or the last line of its errors."""
    command = [
        sys.executable, "-m", "benchmarks.gpu.predict", "--worker", model, "--budget", str(budget),
        "--device", args.device, "--steps", str(args.steps), "--warmup", str(args.warmup), *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def predict(model: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The trace, the plan, and what is measured."""
    path = folder / f"{model}.jsonl.gz"
    ample = "90%" if args.device == "cuda" else "8GiB"
    full = run_worker(model, ample, args, "--trace", str(path))
    if "error" in full:
        return {"model": model, **full}
    trace = read_trace(path)
    options = Options(alignment=trace.header.alignment)
    peak_bytes, smallest_bytes = peak_without_limit(trace), smallest_budget(trace)
    rows = []
    for position in POSITIONS:
        budget = int(smallest_bytes + position * (peak_bytes - smallest_bytes)) // 2**20 * 2**20
        result = simulate(trace, budget, options)
        row: dict[str, Any] = {"budget_bytes": budget, "predicted_fits": result.fitted}
        measured = run_worker(model, budget, args)
        row["measured"] = measured
        if result.fitted:
            step = result.last_step
            overhead = 1 + step.replay_ns / step.compute_ns
            row |= {
                "predicted_overhead": overhead,
                "predicted_ms": full["ms"] * overhead,
                "roofline_ms": (step.compute_ns + step.replay_ns) / 1e6,
                "predicted_evictions": step.num_evictions,
                "predicted_replays": step.num_replays,
            }
            if "ms" in measured:
                row["error"] = row["predicted_ms"] / measured["ms"] - 1
        rows.append(row)
        print(model, json.dumps(row), file=sys.stderr, flush=True)
    return {
        "model": model,
        "peak_bytes": peak_bytes,
        "smallest_bytes": smallest_bytes,
        "num_operators": trace.num_operators,
        "full": full,
        "rows": rows,
    }


def main() -> int:
    """Everything, or with --worker one measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,...")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("predict.json"))
    parser.add_argument("--worker", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--budget", help=argparse.SUPPRESS)
    parser.add_argument("--trace", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(work(args)), flush=True)
        return 0
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models.split(","):
            results.append(predict(model, args, Path(folder)))
            errors = [abs(r["error"]) for m in results for r in m.get("rows", []) if "error" in r]
            summary = {
                "device": args.device,
                "mean_absolute_error": sum(errors) / len(errors) if errors else None,
                "num_cells": len(errors),
                "models": results,
            }
            args.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{len(errors)} cells, mean absolute error {summary['mean_absolute_error']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
