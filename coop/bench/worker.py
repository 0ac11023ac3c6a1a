"""Measures one cell, in a process that does nothing else.

A process of its own, because a CUDA allocator can be chosen only once, and because nothing of one
measurement may be left over for the next.
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import coop
from coop.bench.cells import CONFIGURATIONS, workloads
from coop.machine import memory_bytes

__all__ = ["MOST_OVERHEAD", "WARM_UP", "failed", "measure"]

Row = dict[str, Any]
Batches = list[tuple[Tensor, ...]]

WARM_UP = 2  # steps that are not measured: optimizer states appear in the first
AMPLE_BYTES = memory_bytes()  # only what is touched is ever real memory
# A run with a step that spends more than this on recomputation, in plain steps, is given up.
MOST_OVERHEAD = 5.0
# What the first step of a process may take beyond that on a GPU: libraries are loaded.
_GRACE_S = 5.0
_COUNTS = (
    "num_operators",
    "num_evictions",
    "evicted_bytes",
    "num_replays",
    "num_forced",
    "num_searches",
    "searched_blocks",
    "num_copies",
    "copied_bytes",
    "num_retries",
    "moved_bytes",
    "num_saves",
    "saved_bytes",
)


@dataclass
class Run:
    """What some steps of training left behind."""

    model: nn.Module
    losses: list[float]
    wall_ms: list[float]
    cpu_ms: list[float]

    def result(self) -> Row:
        """Times of the steps that count, and all that must be the same bits in every run."""
        total = 0
        for parameter in self.model.parameters():
            words = parameter.detach().contiguous().view(torch.int32)
            total += int(words.sum(dtype=torch.int64).item())
        bits = "\n".join([*(loss.hex() for loss in self.losses), str(total)])
        return {
            "status": "ok",
            "step_ms": _spread(self.wall_ms[WARM_UP:]),
            "step_cpu_ms": _spread(self.cpu_ms[WARM_UP:]),
            "last_loss": self.losses[-1],
            "digest": hashlib.sha256(bits.encode()).hexdigest()[:16],
        }


def measure(request: Row, batches: Batches, give_up: Callable[[Row], None]) -> Row:
    """The row of one cell; `give_up` ends the process with a row from any thread."""
    workload = workloads().get(request["model"], request["size"])
    device: str = request["device"]
    torch.set_num_threads(request["threads"])
    if device == "cuda":
        # The same bits in every run is a column, and those of a replay are a promise. Not with
        # `warn_only`: memory-efficient attention would then take the kernels that have others.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.enable_cudnn_sdp(False)
    checkpointed = request["configuration"] == "checkpoint"

    def train(after_step: Callable[[], None] = lambda: None) -> Run:
        return _train(workload, device, batches, checkpointed, after_step)

    try:
        if request["budget_bytes"] is None:
            return _measure_plain(train, device)
        measure_budget = _measure_cpu if device == "cpu" else _measure_cuda
        return measure_budget(train, request, give_up)
    except coop.OutOfBudgetError as error:
        return _out_of_budget(error)
    except torch.OutOfMemoryError as error:
        return failed(f"out of memory: {_first_line(error)}")
    except Exception as error:  # whatever it is, the sweep goes on with the next cell
        return failed(f"{type(error).__name__}: {_first_line(error)}")


def _measure_plain(train: Callable[..., Run], device: str) -> Row:
    row = train().result()
    if device == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return row
    # Once more with room for everything: how much that is, and what being watched costs.
    gc.collect()
    with coop.budget(AMPLE_BYTES) as session:
        run = train()
    watched = run.result()
    stats = session.stats()
    row["peak_bytes"] = stats.peak_bytes
    row["needed_bytes"] = stats.needed_bytes
    row["compute_ns"] = stats.compute_ns
    row["watched_step_cpu_ms"] = watched["step_cpu_ms"]
    row["watched_identical"] = watched["digest"] == row["digest"]
    return row


def _measure_cpu(train: Callable[..., Run], request: Row, give_up: Callable[[Row], None]) -> Row:
    marks: list[coop.Stats] = []
    run: Run | None = None
    row: Row = {}
    options = CONFIGURATIONS[request["configuration"]]
    limit_ns = MOST_OVERHEAD * request["plain_compute_ns"] / (WARM_UP + request["steps"])
    with coop.budget(request["budget_bytes"], **options) as session:

        def check() -> coop.Stats:
            before_ns = marks[-1].replay_ns if marks else 0.0
            stats = session.stats()
            if stats.replay_ns - before_ns > limit_ns:
                give_up(failed(_TOO_SLOW))
            return stats

        with _watching(check):
            try:
                run = train(lambda: marks.append(check()))
            except coop.OutOfBudgetError as error:
                row = _out_of_budget(error)
        # A failed step must be let go of before everything that lives on is given back.
        gc.collect()
    return {**run.result(), **_counts(marks, run)} if run else row


def _measure_cuda(train: Callable[..., Run], request: Row, give_up: Callable[[Row], None]) -> Row:
    options = CONFIGURATIONS[request["configuration"]]
    session = coop.install(request["budget_bytes"], **options)
    marks: list[coop.Stats] = []
    limit_s = _GRACE_S + (1 + MOST_OVERHEAD) * request["plain_step_ms"] / 1e3
    step_began = time.perf_counter()

    def check() -> None:
        if time.perf_counter() - step_began > limit_s:
            give_up(failed(_TOO_SLOW))

    def after_step() -> None:
        nonlocal step_began
        marks.append(session.stats())
        step_began = time.perf_counter()

    with _watching(check):
        run = train(after_step)
    # The budget is not left: all that lives on would have to fit it at once, for nothing.
    return {**run.result(), **_counts(marks, run)}


_TOO_SLOW = f"gave up: a step was recomputing for more than {MOST_OVERHEAD:g} plain steps"


@contextmanager
def _watching(check: Callable[[], object]) -> Iterator[None]:
    """Calls `check` now and then from a thread: a step may never come to its end."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            check()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _counts(marks: list[coop.Stats], run: Run) -> Row:
    """What the measured steps did, the steps of warm-up taken off."""
    before, after = marks[WARM_UP - 1], marks[-1]

    def more(field: str) -> Any:
        return getattr(after, field) - getattr(before, field)

    num_forced, num_searches = more("num_forced"), more("num_searches")
    free = after.fragmentation * after.num_forced - before.fragmentation * before.num_forced
    search_us = more("search_ns") / 1e3
    row: Row = {name: more(name) for name in _COUNTS}
    row["peak_bytes"] = after.peak_bytes
    row["needed_bytes"] = after.needed_bytes
    row["overhead_cost"] = 1 + more("replay_ns") / more("compute_ns")
    row["fragmentation"] = free / num_forced if num_forced else 0.0
    row["search_us"] = search_us
    row["us_per_search"] = search_us / num_searches if num_searches else 0.0
    row["us_per_forced"] = search_us / num_forced if num_forced else 0.0
    row["search_share"] = search_us / 1e3 / sum(run.wall_ms[WARM_UP:])
    return row


def _train(
    workload: Any,
    device: str,
    batches: Batches,
    checkpointed: bool,
    after_step: Callable[[], None],
) -> Run:
    """Trains from scratch, one step a batch."""
    with torch.device(device):
        model: nn.Module = workload.make_model(seed=0)
    if checkpointed:
        for block in workload.blocks(model):
            _checkpoint(block)
    optimizer = workload.make_optimizer(model)
    run = Run(model, [], [], [])
    for tensors in batches:
        # A copy on the CPU too: the data of a step counts as memory of the step.
        batch = tuple(
            tensor if position in workload.host_inputs else tensor.to(device, copy=True)
            for position, tensor in enumerate(tensors)
        )
        _synchronize(device)
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        _synchronize(device)
        run.wall_ms.append((time.perf_counter() - wall) * 1e3)
        run.cpu_ms.append((time.process_time() - cpu) * 1e3)
        run.losses.append(loss.item())
        del loss, batch
        after_step()
    return run


def _checkpoint(module: nn.Module) -> None:
    forward = module.forward

    def checkpointed(*args: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False)

    module.forward = checkpointed


def _spread(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {"median": statistics.median(ordered), "least": ordered[0], "most": ordered[-1]}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _out_of_budget(error: coop.OutOfBudgetError) -> Row:
    # What was wanted, and what was in the way.
    return failed(f"out of budget: {' '.join(str(error).splitlines()[:2])}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def failed(reason: str) -> Row:
    """The row of a cell without a result."""
    return {"status": "failed", "reason": reason}
