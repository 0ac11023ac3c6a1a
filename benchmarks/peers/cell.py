"""One peer on one network, in this process: prints its row.

All that takes time and no GPU is done first. Then it waits for a line of two numbers: the bytes
that shares are of, and the bytes that torch may take (0: no limit). So the next cell can get ready
while one is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config

import coop
from benchmarks import models
from benchmarks.models import Workload
from benchmarks.peers.ways import WAYS, WAYS_WITH_COPIES, WAYS_WITHIN, CannotRun, Setup, Way
from benchmarks.zoo.networks import NETWORKS
from coop._native import _C

# Steps that do not count, and those that do.
WARM_UP, MEASURED = 4, 5
# Inside a budget the first steps are decided as they come, and a schedule is looked for meanwhile,
# on a GPU for some seconds: the row says what these steps took.
MOST_WARM_UP, WARM_UP_SECONDS = 40, 4.0
# Of the measured steps, what one of them does.
PER_STEP = (
    "num_replays",
    "replay_ns",
    "compute_ns",
    "host_saved_bytes",
    "host_loaded_bytes",
    "host_wait_ns",
    "num_followed",
)
# On a CPU room for copies is a file.
HOST_OF_CPU = "4GiB"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# On a CPU, what the process had of it: others run there too.
clock = time.perf_counter if DEVICE == "cuda" else time.process_time


def workload_named(name: str, size: str, batch: int | None) -> Workload:
    """Of `benchmarks.models`, or of the zoo at its own size."""
    if name in models.all_names():
        return models.get(name, "tiny" if size == "tiny" else "paper", batch)
    workload = NETWORKS[name].make()
    return workload if batch is None else workload.with_batch(batch)


class Memory:
    """What the driver gave to this process, or the kernel: the most at one time, in bytes."""

    def __init__(self) -> None:
        self._before = _resident("VmRSS")

    def forget(self) -> None:
        """What was, when things were being set up."""
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")

    def most(self) -> int:
        """Since then."""
        if DEVICE == "cuda":
            return torch.cuda.max_memory_reserved()
        return _resident("VmHWM") - self._before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def limit(num_bytes: int) -> None:
    """torch's allocator takes no more from the driver. On a CPU nothing holds it."""
    if DEVICE == "cuda":
        all_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / all_bytes))


def measure(
    workload: Workload, way: Way, whole_bytes: int, row: dict[str, Any], warm_up: int = WARM_UP
) -> None:
    """Adds what was measured to the row."""
    memory = Memory()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._functorch.config.patch(way.config))
        session = None
        if way.share:
            size = int(way.share * whole_bytes)
            row["budget_bytes"] = size
            if DEVICE == "cuda":
                session = coop.install(size, host=way.host)
            elif way.host:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                changes: dict[str, Any] = {"host": HOST_OF_CPU, "host_dir": folder}
                session = stack.enter_context(coop.budget(size, device="cpu", **changes))
            else:
                session = stack.enter_context(coop.budget(size, device="cpu"))
            if way.only_copies:
                session._engine.set_link(_C.LinkProfile(1e18, 1e18, 1.0))
        stack.enter_context(torch.device(DEVICE))
        model = workload.make_model(0)
        setup = Setup(workload, model, workload.make_optimizer(model), DEVICE)
        way.apply(setup)
        batch = workload.make_batch(0, DEVICE)

        def step() -> float:
            begin = clock()
            setup.optimizer.zero_grad(set_to_none=True)
            with setup.around():
                loss = workload.loss(model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
            setup.optimizer.step()
            row["loss"] = float(loss.detach())
            return clock() - begin

        first = get_ready(step, session, warm_up)
        memory.forget()
        before = {} if session is None else session.stats().as_dict()
        seconds = [step() for _ in range(MEASURED)]
        row["memory_bytes"] = memory.most()
        row["first_ms"] = [round(1e3 * s) for s in first]
        row["ms"] = round(1e3 * statistics.median(seconds), 2)
        row["ms_range"] = [round(1e3 * min(seconds), 2), round(1e3 * max(seconds), 2)]
        if session is not None:
            stats = session.stats()
            row["num_evictions"], row["num_replays"] = stats.num_evictions, stats.num_replays
            row["num_followed"] = stats.num_followed
            after = stats.as_dict()
            for name in PER_STEP:
                row[f"step_{name}"] = round((after[name] - before[name]) / MEASURED, 3)
            row["host_peak_bytes"] = stats.host_peak_bytes


def get_ready(step: Callable[[], float], session: coop.Session | None, warm_up: int) -> list[float]:
    """What each of the first steps took, until it is as it will be."""
    seconds = [step() for _ in range(warm_up)]
    if session is None:
        return seconds
    followed: list[int] = []
    enough = WARM_UP_SECONDS if DEVICE == "cuda" else 0.0
    while len(seconds) < MOST_WARM_UP and session.stats().num_evictions > 0:
        seconds.append(step())
        followed.append(session.stats().num_followed)
        is_followed = len(followed) > 2 and followed[-1] == followed[-3] + 2
        if is_followed and sum(seconds) > enough:
            break
    return seconds


def main() -> None:
    """The last line is the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("way", help="its label")
    parser.add_argument("--size", choices=("tiny", "paper"), default="paper")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    args = parser.parse_args()
    way = next(each for each in (*WAYS, *WAYS_WITHIN, *WAYS_WITH_COPIES) if each.label == args.way)
    row: dict[str, Any] = {"model": args.model, "way": way.label, "peer": way.name}
    row |= {"size": args.size, "device": DEVICE, "torch": torch.__version__}
    workload = workload_named(args.model, args.size, args.batch)
    with torch.device("meta"), contextlib.suppress(Exception):
        workload.make_model(0)  # which imports its library
    row["batch_size"] = workload.batch_size
    whole_bytes, limit_bytes = (int(number) for number in sys.stdin.readline().split())
    try:
        if limit_bytes and not way.share:
            limit(limit_bytes)
        measure(workload, way, whole_bytes, row, args.warm_up)
        # On a GPU a budget is an arena of that size.
        is_held = bool(way.share) and DEVICE == "cuda"
        if limit_bytes and not is_held and row["memory_bytes"] > limit_bytes:
            row["why_not"] = f"takes {row['memory_bytes'] / 2**20:.0f} MiB"
    except CannotRun as reason:
        row["why_not"] = str(reason)
    except Exception as error:  # of a library: the row says what
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        row["why_not"] = f"{type(error).__name__}: {' '.join(lines[:2])[:200]}"
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
