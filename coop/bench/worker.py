"""Measures one cell: a request as JSON on standard input, a row as JSON on the last line of output.

A process of its own for every cell, because a CUDA allocator can be chosen only once, and because
nothing of one measurement may be left over for the next.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import coop
from coop.bench.cells import CONFIGURATIONS, workloads

WARM_UP = 2  # steps that are not measured: optimizer states appear in the first
AMPLE_BYTES = 2**36  # never a reason to evict; only what is touched is ever real memory
# A run that spends more than this on recomputation, in steps, counts as one that does not fit.
MOST_OVERHEAD = 10.0


@dataclass
class Run:
    """What some steps of training left behind."""

    times_ms: list[float]
    tensors: list[Tensor]  # losses and parameters

    def digest(self) -> str:
        """Of all their bits. To be asked outside of a budget, where nothing is evicted any more."""
        digest = hashlib.sha256()
        for tensor in self.tensors:
            content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(content.numpy().tobytes())
        return digest.hexdigest()


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The row of one cell."""
    workload = workloads().get(request["model"], request["size"])
    device: str = request["device"]
    torch.set_num_threads(request["threads"])
    if device == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
    name: str = request["configuration"]
    num_steps: int = request["steps"]

    def train(mark: Callable[[], None] = lambda: None) -> Run:
        return _train(workload, device, num_steps, name == "checkpoint", mark)

    if name == "checkpoint" and not workload.block_types:
        return _failed("the network has no blocks to checkpoint")
    if request["budget_bytes"] is None:
        return _measure_plain(train, device)
    before = train() if request["with_plain"] else None
    row = _measure_budget(train, request)
    if before is not None and row["status"] == "ok":
        after = train()
        plain_ms = statistics.median(before.times_ms + after.times_ms)
        row["plain_step_ms"] = plain_ms
        row["overhead_wall"] = row["step_ms"]["median"] / plain_ms
        row["identical"] = row["digest"] == before.digest()
    return row


def _measure_plain(train: Callable[[], Run], device: str) -> dict[str, Any]:
    run = train()
    digest = run.digest()
    row: dict[str, Any] = {"status": "ok", "step_ms": _spread(run.times_ms), "digest": digest}
    if device == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return row
    # Once more with room for everything: how much that is, and what being watched costs.
    with coop.budget(AMPLE_BYTES) as session:
        watched = train()
        gc.collect()
    stats = session.stats()
    row["peak_bytes"] = stats.peak_bytes
    row["compute_ns"] = stats.compute_ns
    row["watched_step_ms"] = _spread(watched.times_ms)
    row["identical"] = watched.digest() == row["digest"]
    return row


def _measure_budget(train: Callable[..., Run], request: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = dict(CONFIGURATIONS[request["configuration"]])
    if request["device"] == "cuda":
        options["device"] = "cuda"
    marks: list[coop.Stats] = []
    run: Run | None = None
    row: dict[str, Any] = {}
    with coop.budget(request["budget_bytes"], **options) as session:
        with _giving_up(session, request["compute_ns"]):
            try:
                run = train(lambda: marks.append(session.stats()))
            except coop.OutOfBudgetError as error:
                row = _failed(f"out of budget: {str(error).splitlines()[0]}")
                row["shortage"] = error.shortage
        # A failed step must be let go of before everything that lives on is given back.
        gc.collect()
    if run is None:
        return row
    stats = session.stats()
    if stats.replay_ns > MOST_OVERHEAD * stats.compute_ns:
        return _failed(_TOO_SLOW)
    row = {"status": "ok", "step_ms": _spread(run.times_ms), "digest": run.digest()}
    row.update(_counts(marks[0], stats, sum(run.times_ms)))
    return row


_TOO_SLOW = f"gave up: recomputation takes more than {MOST_OVERHEAD:g} times the step itself"


@contextlib.contextmanager
def _giving_up(session: coop.Session, compute_ns: float | None) -> Iterator[None]:
    """Ends the process with a failed row once recomputation has cost more than `compute_ns` allows.

    Only runs that would end with that result are cut short, so a row does not depend on timing.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            if compute_ns and session.stats().replay_ns > MOST_OVERHEAD * compute_ns:
                print(json.dumps(_failed(_TOO_SLOW)), flush=True)
                os._exit(0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _counts(before: coop.Stats, after: coop.Stats, total_ms: float) -> dict[str, Any]:
    """What the measured steps did, the steps of warm-up taken off."""

    def delta(field: str) -> Any:
        return getattr(after, field) - getattr(before, field)

    compute_ns = delta("compute_ns")
    num_forced = delta("num_forced")
    free = after.fragmentation * after.num_forced - before.fragmentation * before.num_forced
    num_searches = delta("num_searches")
    row = {
        name: delta(name)
        for name in (
            "num_operators",
            "num_evictions",
            "evicted_bytes",
            "num_replays",
            "num_forced",
            "num_searches",
            "searched_blocks",
            "num_moves",
            "moved_bytes",
            "num_copies",
            "copied_bytes",
        )
    }
    row["peak_bytes"] = after.peak_bytes
    row["overhead_cost"] = 1 + delta("replay_ns") / compute_ns
    row["fragmentation"] = free / num_forced if num_forced else 0.0
    row["search_us"] = delta("search_ns") / 1e3
    row["us_per_search"] = row["search_us"] / num_searches if num_searches else 0.0
    row["us_per_forced"] = row["search_us"] / num_forced if num_forced else 0.0
    row["search_share"] = row["search_us"] / 1e3 / total_ms
    return row


def _train(
    workload: Any, device: str, num_steps: int, checkpointed: bool, mark: Callable[[], None]
) -> Run:
    """Trains from scratch; `mark` is called when the steps that count begin."""
    with torch.device(device):
        model: nn.Module = workload.make_model(seed=0)
    if checkpointed:
        for block in workload.blocks(model):
            _checkpoint(block)
    optimizer = workload.make_optimizer(model)
    losses: list[Tensor] = []
    times_ms: list[float] = []
    for step in range(WARM_UP + num_steps):
        if step == WARM_UP:
            mark()
        batch = workload.make_batch(step, device)
        _synchronize(device)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        _synchronize(device)
        times_ms.append((time.perf_counter() - start) * 1e3)
        losses.append(loss.detach().cpu().clone())
        del loss, batch
    return Run(times_ms[WARM_UP:], [*losses, *model.parameters()])


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


def _failed(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason}


def main() -> int:
    """Reads the request, prints the row."""
    print(json.dumps(measure(json.load(sys.stdin))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
