"""Measures one cell, in a process that does nothing else.

A process of its own, because a CUDA allocator can be chosen only once, and because nothing of one
measurement may be left over for the next.
"""

from __future__ import annotations

import gc
import hashlib
import os
import statistics
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import coop
from benchmarks import models
from benchmarks.harness import operators
from benchmarks.harness.cells import CONFIGURATIONS, WITHOUT
from benchmarks.models import Batch, Workload
from coop.machine import memory_bytes

__all__ = ["MOST_OVERHEAD", "Turns", "failed", "measure"]

Row = dict[str, Any]
Batches = list[Batch]
GiveUp = Callable[[Row], None]

AMPLE_BYTES = memory_bytes()  # only what is touched is ever real memory
# A run with a step that spends more than this on recomputation, in plain steps, is given up.
MOST_OVERHEAD = 5.0
# What the first step of a process may take beyond that on a GPU: libraries are loaded.
_GRACE_S = 5.0
_TOO_SLOW = f"gave up: a step was recomputing for more than {MOST_OVERHEAD:g} plain steps"
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
    "compute_ns",
    "replay_ns",
)


@dataclass
class Turns:
    """Who says how many steps to run, and who is told their times."""

    numbers: Iterable[int]
    say: Callable[[list[float]], None]


class Training:
    """A network that trains from scratch, and the times and losses of its steps."""

    def __init__(self, request: Row, batches: Batches) -> None:
        self.workload = _workload(request)
        self.device: str = request["device"]
        self.batches = batches
        self.warmup: int = request["warmup"]
        with torch.device(self.device):
            self.model = self.workload.make_model(seed=0)
        if request["configuration"] == "checkpoint":
            self.workload.checkpoint(self.model)
        self.optimizer = self.workload.make_optimizer(self.model)
        self.losses: list[float] = []
        self.wall_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def run(self, num_steps: int, after_step: Callable[[], None] = lambda: None) -> None:
        """So many steps more."""
        for _ in range(num_steps):
            self._step()
            after_step()

    def batch(self) -> Batch:
        """The data of the next step, on the device."""
        number = len(self.losses)
        if number >= len(self.batches):  # the measured steps once more, each with its own data
            number = self.warmup + (number - self.warmup) % (len(self.batches) - self.warmup)
        # A copy on the CPU too: the data of a step counts as memory of the step.
        return tuple(
            tensor if position in self.workload.host_inputs else tensor.to(self.device, copy=True)
            for position, tensor in enumerate(self.batches[number])
        )

    def train(self, batch: Batch) -> Tensor:
        """One step, not waited for; its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.workload.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def _step(self) -> None:
        batch = self.batch()
        _synchronize(self.device)
        wall, cpu = time.perf_counter(), time.process_time()
        loss = self.train(batch)
        _synchronize(self.device)
        self.wall_ms.append((time.perf_counter() - wall) * 1e3)
        self.cpu_ms.append((time.process_time() - cpu) * 1e3)
        self.losses.append(loss.item())

    def result(self, first: int, with_digest: bool) -> Row:
        """Times of the steps from `first` on, and what must be the same bits in every run."""
        row: Row = {
            "status": "ok",
            "steps": len(self.wall_ms) - first,
            "step_ms": _spread(self.wall_ms[first:]),
            "step_cpu_ms": _spread(self.cpu_ms[first:]),
            "last_loss": self.losses[-1],
        }
        if with_digest:
            parameters = list(self.model.parameters())
            gradients = [each.grad for each in parameters if each.grad is not None]
            losses = "\n".join(loss.hex() for loss in self.losses)
            row["digest"] = _digest([*parameters, *gradients], losses)
            row["buffers_digest"] = _digest(self.model.buffers())
        return row


def _digest(tensors: Iterable[Tensor], start: str = "") -> str:
    """Of every bit."""
    sha = hashlib.sha256(start.encode())
    for tensor in tensors:
        flat = tensor.detach().cpu().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def measure(request: Row, batches: Batches, give_up: GiveUp, turns: Turns | None = None) -> Row:
    """The row of one cell; `give_up` ends the process with a row from any thread."""
    try:
        _prepare(request)
        driver_bytes = _driver_bytes(request["device"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            row = _measure(request, batches, give_up, turns)
        said = sorted({str(each.message) for each in caught if "coop" in str(each.message)})
        if said:
            row["warnings"] = said
        if driver_bytes is not None and row["status"] == "ok":
            row["driver_bytes"] = (_driver_bytes(request["device"]) or 0) - driver_bytes
        return row
    except coop.OutOfBudgetError as error:
        return _out_of_budget(error)
    except torch.OutOfMemoryError as error:
        return failed(f"out of memory: {_first_line(error)}")
    except Exception as error:  # whatever it is, the run goes on with the next cell
        return failed(f"{type(error).__name__}: {_first_line(error)}")


def _measure(request: Row, batches: Batches, give_up: GiveUp, turns: Turns | None) -> Row:
    if request.get("kind") == "operators":
        return operators.overhead(request["device"], request["configuration"])
    if request["configuration"] in WITHOUT:
        return _measure_plain(request, batches, turns)
    return _measure_budget(request, batches, give_up, turns)


def _prepare(request: Row) -> None:
    torch.set_num_threads(request["threads"])
    if request.get("cores"):
        os.sched_setaffinity(0, request["cores"])
    if request["deterministic"] and request["device"] == "cuda":
        # The same bits in every run is a column, and those of a replay are a promise. Not with
        # `warn_only`: memory-efficient attention would then take the kernels that have others.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.enable_cudnn_sdp(False)


def _measure_plain(request: Row, batches: Batches, turns: Turns | None) -> Row:
    device, budget_bytes = request["device"], request.get("budget_bytes")
    if budget_bytes is not None:
        _limit_plain(device, budget_bytes)
    training = Training(request, batches)
    _run(training, request, turns)
    row = training.result(request["warmup"], _has_digest(request))
    if device == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return row
    if turns is not None:
        return row
    # Once more with room for everything: how much that is, and what being watched costs.
    del training
    gc.collect()
    with coop.budget(AMPLE_BYTES, device="cpu") as session:
        training = Training(request, batches)
        _run(training, request, None)
    watched = training.result(request["warmup"], True)
    stats = session.stats()
    row["peak_bytes"] = stats.peak_bytes
    row["needed_bytes"] = stats.needed_bytes
    row["needed_is_estimate"] = stats.needed_is_estimate
    row["all_compute_ns"] = stats.compute_ns
    row["watched_step_cpu_ms"] = watched["step_cpu_ms"]
    row["watched_identical"] = all(
        watched[name] == row[name] for name in ("digest", "buffers_digest")
    )
    return row


def _limit_plain(device: str, budget_bytes: int) -> None:
    if device != "cuda":
        raise ValueError("plain torch has no budget on the CPU")
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(budget_bytes / total_bytes)


def _measure_budget(request: Row, batches: Batches, give_up: GiveUp, turns: Turns | None) -> Row:
    on_cuda, trace = request["device"] == "cuda", request.get("trace")
    budget, options = request["budget_bytes"], CONFIGURATIONS[request["configuration"]]
    marks: list[coop.Stats] = []
    first: int = request["warmup"]
    timed: Row = {}
    training: Training | None = None
    with ExitStack() as stack:
        if on_cuda:
            # It is not left: all that lives on would have to fit it at once, for nothing.
            session = coop.install(budget, **options)
        else:
            session = stack.enter_context(coop.budget(budget, device="cpu", **options))
        limit = _StepLimit(session, request, marks, give_up)
        if trace:
            session.start_trace()
        try:
            with limit.watching():
                training = Training(request, batches)
                if trace:  # of the steps that the others measure; recording takes time too
                    training.run(request["warmup"] + request["steps"], limit.after_step)
                    session.save_trace(trace, comment=request["model"])
                    first += request["steps"]
                    training.run(request["steps"], limit.after_step)
                    timed = operators.timed_steps(training.batch, training.train, training.device)
                else:
                    _run(training, request, turns, limit.after_step)
        except coop.OutOfBudgetError as error:
            training, row = None, _out_of_budget(error)
        if training is not None and on_cuda:
            row = training.result(first, _has_digest(request))
            row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        # A failed step must be let go of before everything that lives on is given back.
        gc.collect()
    if training is not None:
        assert first > 0, "a cell with a budget needs a step of warm-up"
        if not on_cuda:
            row = training.result(first, True)
        row |= _counts(marks[first - 1], marks[-1], sum(training.wall_ms[first:]))
        row["stats"] = marks[-1].as_dict()
    return {**row, "operators": timed} if timed else row


def _run(
    training: Training,
    request: Row,
    turns: Turns | None,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    training.run(request["warmup"], after_step)
    if turns is None:
        training.run(request["steps"], after_step)
        return
    turns.say([])
    for number in turns.numbers:
        training.run(number, after_step)
        turns.say(training.wall_ms[-number:])


class _StepLimit:
    """Gives up a cell whose steps recompute for too long. Without a plain step there is no limit.

    On the CPU by the cost of what is recomputed, which is the same in every run; on a GPU by the
    clock.
    """

    def __init__(
        self, session: coop.Session, request: Row, marks: list[coop.Stats], give_up: GiveUp
    ) -> None:
        self._session, self._marks, self._give_up = session, marks, give_up
        self._limit_ns = self._limit_s = None
        if request["device"] == "cuda" and request.get("plain_step_ms"):
            self._limit_s = _GRACE_S + (1 + MOST_OVERHEAD) * request["plain_step_ms"] / 1e3
        elif request["device"] == "cpu" and request.get("plain_compute_ns"):
            num_steps = request["warmup"] + request["steps"]
            self._limit_ns = MOST_OVERHEAD * request["plain_compute_ns"] / num_steps
        self._began_s = time.perf_counter()

    def after_step(self) -> None:
        self._marks.append(self._check())
        self._began_s = time.perf_counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks now and then from a thread: a step may never come to its end."""
        if self._limit_ns is None and self._limit_s is None:
            yield
            return
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                self._check()

        self._began_s = time.perf_counter()
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _check(self) -> coop.Stats:
        before_ns = self._marks[-1].replay_ns if self._marks else 0.0
        stats = self._session.stats()
        if self._limit_ns is not None and stats.replay_ns - before_ns > self._limit_ns:
            self._give_up(failed(_TOO_SLOW))
        if self._limit_s is not None and time.perf_counter() - self._began_s > self._limit_s:
            self._give_up(failed(_TOO_SLOW))
        return stats


def _counts(before: coop.Stats, after: coop.Stats, wall_ms: float) -> Row:
    """What the measured steps did."""

    def more(field: str) -> Any:
        return getattr(after, field) - getattr(before, field)

    num_forced, num_searches = more("num_forced"), more("num_searches")
    free = after.fragmentation * after.num_forced - before.fragmentation * before.num_forced
    search_us = more("search_ns") / 1e3
    row: Row = {name: more(name) for name in _COUNTS}
    row["peak_bytes"] = after.peak_bytes
    row["needed_bytes"] = after.needed_bytes
    row["needed_is_estimate"] = after.needed_is_estimate
    row["overhead_cost"] = 1 + more("replay_ns") / more("compute_ns")
    row["fragmentation"] = free / num_forced if num_forced else 0.0
    row["search_us"] = search_us
    row["us_per_search"] = search_us / num_searches if num_searches else 0.0
    row["us_per_forced"] = search_us / num_forced if num_forced else 0.0
    row["search_share"] = search_us / 1e3 / wall_ms
    return row


def _workload(request: Row) -> Workload:
    return models.get(request["model"], request["size"], request.get("batch_size"))


def _has_digest(request: Row) -> bool:
    # On a GPU without deterministic kernels the bits of two runs differ anyway.
    return bool(request["device"] == "cpu" or request["deterministic"])


def _spread(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {"median": statistics.median(ordered), "least": ordered[0], "most": ordered[-1]}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _driver_bytes(device: str) -> int | None:
    """What the driver says the whole first GPU has in use."""
    if device != "cuda":
        return None
    query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    done = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, check=True)
    return int(done.stdout.strip()) * 2**20


def _out_of_budget(error: coop.OutOfBudgetError) -> Row:
    # What was wanted, and what was in the way.
    return failed(f"out of budget: {' '.join(str(error).splitlines()[:2])}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def failed(reason: str) -> Row:
    """The row of a cell without a result."""
    return {"status": "failed", "reason": reason}
