"""Running code inside a memory budget."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from coop._native import _C
from coop.errors import LostTensorError, OutOfBudgetError, make_out_of_budget_error
from coop.events import as_events
from coop.progress import StepCallback, StepMeter
from coop.recording import DEFAULT_MAX_EVENTS, Failure, Recording
from coop.sizes import format_bytes, parse_bytes

__all__ = [
    "Session",
    "Stats",
    "allow_replay",
    "budget",
    "evict",
    "is_resident",
    "materialize",
    "pin",
    "unpin",
]

PolicyName = Literal["coop", "dtr", "dte"]

# Below this not even the area for small tensors has room.
SMALLEST_BUDGET_BYTES = 64 * 1024


@dataclass(frozen=True)
class Stats:
    """What happened inside a budget so far. Times are estimated operator costs unless measured."""

    budget_bytes: int
    held_bytes: int
    peak_bytes: int
    free_bytes: int
    largest_free_bytes: int
    num_operators: int
    num_replays: int
    num_evictions: int
    evicted_bytes: int
    num_searches: int
    search_ns: int
    searched_blocks: int
    num_forced: int
    fragmentation: float
    num_copies: int
    copied_bytes: int
    num_steps: int
    compute_ns: float
    replay_ns: float
    num_records: int
    num_values: int
    num_blocks: int

    @property
    def overhead(self) -> float:
        """Cost of all operators over the cost of those the program asked for."""
        return 1 + self.replay_ns / self.compute_ns if self.compute_ns else 1.0

    def as_dict(self) -> dict[str, float]:
        """All fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class Profile:
    """What a device can do, for the roofline that estimates the cost of operators."""

    flops_per_ns: float
    half_flops_per_ns: float
    bytes_per_ns: float
    launch_ns: float


CPU_PROFILE = Profile(flops_per_ns=60, half_flops_per_ns=60, bytes_per_ns=8, launch_ns=1000)


class Session:
    """One stay inside a budget; made by `coop.budget`."""

    def __init__(self, engine: Any, policy: str = "coop", device: str = "cpu") -> None:
        self._engine = engine
        self._policy = policy
        self._device = device
        self._final: Stats | None = None
        self._recorded = False
        self._recording: Recording | None = None
        self._failures: list[Failure] = []
        self._step_callbacks: list[StepCallback] = []
        self._meter: StepMeter | None = None

    def stats(self) -> Stats:
        """What happened so far; after the budget was left, what had happened by then."""
        return self._final or Stats(**self._engine.stats())

    def reset_peak(self) -> None:
        """Forget the peak: `peak_bytes` counts from what is held now."""
        self._engine.reset_peak()

    def on_step(self, callback: StepCallback) -> Callable[[], None]:
        """Call `callback` with a `coop.progress.Step` at the end of every step from now on.

        Returns a function that ends this.
        """
        if self._meter is None:
            self._meter = StepMeter(self.stats().as_dict())
        self._step_callbacks.append(callback)
        return lambda: self._step_callbacks.remove(callback)

    def record_events(self, max_events: int = DEFAULT_MAX_EVENTS) -> None:
        """From now on, remember what happens to every block, for reports and snapshots.

        An event takes 48 bytes of memory outside of the budget; those after the first `max_events`
        are counted, not kept.
        """
        self._recorded = True
        self._engine.log_events(True, max_events)

    def recording(self) -> Recording:
        """What was recorded; after the budget was left, what had been by then."""
        if not self._recorded:
            raise RuntimeError(
                "no events were recorded: use coop.budget(..., events=True), or call "
                "session.record_events() before what the report is to show"
            )
        return self._recording or Recording(
            events=as_events(self._engine.events()),
            operator_names=_C.operator_names(),
            pin_reasons=self._engine.pin_reasons(),
            num_dropped=self._engine.num_dropped_events(),
            stats=self.stats().as_dict(),
            policy=self._policy,
            device=self._device,
            failures=list(self._failures),
        )

    def save_report(self, path: str | Path, title: str = "") -> None:
        """Write the recorded events as one HTML file that needs nothing else."""
        from coop.report import save_report

        save_report(self.recording(), path, title)

    def save_snapshot(self, path: str | Path) -> None:
        """Write the recorded events as a memory snapshot that pytorch.org/memory_viz opens."""
        from coop.report.snapshot import save_snapshot

        save_snapshot(self.recording(), path)

    def _end_step(self) -> None:
        if self._meter is None:
            return
        step = self._meter.measure(self.stats().as_dict())
        for callback in list(self._step_callbacks):
            callback(step)

    def _close(self) -> list[str]:
        self._final = self.stats()
        if self._recorded:
            self._recording = self.recording()
            self._engine.log_events(False)
        lost: list[str] = self._engine.close()
        self._engine = None
        return lost


_session: Session | None = None


def _current() -> Any:
    if _session is None:
        raise RuntimeError("this needs a budget: call it inside `with coop.budget(...)`")
    return _session._engine


@contextlib.contextmanager
def budget(
    size: int | str,
    *,
    policy: PolicyName = "coop",
    window: bool = True,
    partition: bool = True,
    inplace: bool = True,
    measure_costs: bool = False,
    events: bool = False,
    paranoid: bool = False,
) -> Iterator[Session]:
    """Run the body inside `size` bytes of memory.

    Every CPU tensor made by this thread (and by autograd for it) lives in one region of exactly that
    size. When an allocation does not fit, values that can be recomputed are evicted; they come back
    when an operator needs them. Results are bit-identical to running without a budget.

    Args:
        size: bytes, or a size such as `"600MiB"` (2**20) or `"8GB"` (10**9).
        policy: what chooses the evictions: `"coop"`, or the baselines `"dtr"` and `"dte"`.
        window: with `"coop"`, evict the cheapest contiguous window (else one value at a time).
        partition: with `"coop"`, place cheap and expensive values at opposite ends.
        inplace: with `"coop"`, keep in-place writes in place (else copy on write).
        measure_costs: take the measured time of operators as their cost instead of a roofline
            estimate. Decisions then differ from run to run; results do not.
        events: remember what happens to every block, for `session.save_report`.
        paranoid: evict everything that can be after every operator. For tests.

    Raises:
        OutOfBudgetError: by an operator that does not fit. Recoverable.
        LostTensorError: on leaving, when tensors could not be given back.
    """
    global _session
    num_bytes = parse_bytes(size)
    if num_bytes < SMALLEST_BUDGET_BYTES:
        raise ValueError(
            f"a budget of {size!r} is too small: at least {format_bytes(SMALLEST_BUDGET_BYTES)}"
        )
    if _session is not None:
        raise RuntimeError(
            f"already inside a budget of {format_bytes(_session.stats().budget_bytes)}: "
            "budgets do not nest"
        )
    config = _C.Config(num_bytes, policy, window=window, partition=partition, inplace=inplace)
    profile = _C.DeviceProfile(**asdict(CPU_PROFILE))
    _session = Session(_C.Engine.cpu(config, profile, measure_costs, paranoid), policy)
    session = _session
    if events:
        session.record_events()
    _guard_raw_pointers()
    try:
        yield session
    finally:
        _release_raw_pointers()
        _session = None
        lost = session._close()
    if lost:
        raise LostTensorError(
            f"{len(lost)} tensors could not be given back on leaving the budget of "
            f"{format_bytes(num_bytes)}: " + "; ".join(lost)
        )


def materialize(tensor: Tensor) -> Tensor:
    """Bring the tensor's bytes back now, if they are evicted. Returns the tensor."""
    _current().materialize(tensor)
    return tensor


def evict(tensor: Tensor) -> bool:
    """Give up the tensor's bytes now. False if they cannot be recomputed or are pinned."""
    return bool(_current().evict(tensor))


def pin(tensor: Tensor) -> Tensor:
    """Keep the tensor's bytes in memory, at the same address, until `unpin`. Returns the tensor."""
    _current().pin(tensor, False)
    return tensor


def unpin(tensor: Tensor) -> Tensor:
    """Undo all pins of the tensor. Returns the tensor."""
    _current().unpin(tensor)
    return tensor


def is_resident(tensor: Tensor) -> bool:
    """Whether the tensor's bytes are in memory now."""
    return _session is None or bool(_session._engine.is_resident(tensor))


def allow_replay(operator: str) -> None:
    """Let the results of a custom operator, such as `"mylib::op"`, be evicted and recomputed.

    You vouch that it is deterministic, and that it writes only what its schema says it writes.
    """
    _C.allow_replay(operator)


# A raw pointer that left torch (a NumPy array, an address) must stay valid: its storage is pinned.
_RAW_POINTER_METHODS = ("numpy", "data_ptr", "__dlpack__")


def _pinning(method: Callable[..., Any]) -> Callable[..., Any]:
    def pin_and_call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if _session is not None and _session._engine.owns(self):
            _session._engine.pin(self, True)
        return result

    return pin_and_call


def _guard_raw_pointers() -> None:
    for name in _RAW_POINTER_METHODS:
        _saved_methods[name] = torch.Tensor.__dict__.get(name)
        setattr(torch.Tensor, name, _pinning(getattr(torch.Tensor, name)))


def _release_raw_pointers() -> None:
    for name, method in _saved_methods.items():
        if method is None:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, method)
    _saved_methods.clear()


_saved_methods: dict[str, Any] = {}


def _step_begins(*_: Any) -> None:
    if _session is not None and _C.is_thread_enabled():
        _session._engine.begin_step()


def _step_ends(*_: Any) -> None:
    if _session is not None and _C.is_thread_enabled():
        inside_backward = torch._C._current_graph_task_id() != -1
        _session._engine.end_step(not inside_backward)
        if not inside_backward:
            _session._end_step()


def _make_error(operator: str, replaying: str, shortage: dict[str, Any]) -> OutOfBudgetError:
    error = make_out_of_budget_error(operator, replaying, shortage)
    if _session is not None:
        _session._failures.append(Failure(str(error), operator, replaying, shortage))
        # A program that catches and tries again, for hours, needs only the newest.
        del _session._failures[:-16]
    return error


def _forked() -> None:
    global _session
    _session = None
    _C.after_fork_in_child()


register_optimizer_step_pre_hook(_step_begins)
register_optimizer_step_post_hook(_step_ends)
os.register_at_fork(after_in_child=_forked)
_C.set_error_factory(_make_error)
