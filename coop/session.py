"""Running code inside a memory budget."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from coop._native import _C
from coop.errors import LostTensorError, make_out_of_budget_error
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

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._final: Stats | None = None
        self._pinned: dict[str, str] = {}

    def stats(self) -> Stats:
        """What happened so far; after the budget was left, what had happened by then."""
        return self._final or Stats(**self._engine.stats())

    def pinned_operators(self) -> dict[str, str]:
        """Operators whose results stayed in memory because they are not recomputed, and why."""
        engine = self._engine
        return self._pinned if engine is None else dict(engine.pinned_operators())

    def reset_peak(self) -> None:
        """Forget the peak: `peak_bytes` counts from what is held now."""
        self._engine.reset_peak()

    def _close(self) -> list[str]:
        self._final = self.stats()
        self._pinned = self.pinned_operators()
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
    paranoid: bool = False,
    small_bytes: int = 10240,
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
        paranoid: evict everything that can be after every operator. For tests.
        small_bytes: values up to this size live in an area of their own and are never evicted.

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
    config = _C.Config(
        num_bytes,
        policy,
        window=window,
        partition=partition,
        inplace=inplace,
        small_bytes=small_bytes,
    )
    profile = _C.DeviceProfile(**asdict(CPU_PROFILE))
    _session = Session(_C.Engine.cpu(config, profile, measure_costs, paranoid))
    session = _session
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


# A raw pointer that left torch must stay valid: its storage is pinned. Memory that is shared (a
# NumPy array) may be written too, unseen: nothing is recomputed from it. An address alone (libraries
# compare those of parameters) is taken as not written through.
_RAW_POINTER_METHODS = ("numpy", "data_ptr", "__dlpack__")


def _pinning(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)

    def pin_and_call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if _session is not None:
            if name != "data_ptr":
                _session._engine.expose(self)
            elif _session._engine.owns(self):
                _session._engine.pin(self, True)
        return result

    return pin_and_call


# They read the bytes without an operator, at once.
_READING_METHODS = ("tolist", "share_memory_", "__deepcopy__")


def _materializing(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)

    def materialize_and_call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _session is not None and _session._engine.owns(self):
            _session._engine.materialize(self)
        return method(self, *args, **kwargs)

    return materialize_and_call


def _guard_raw_pointers() -> None:
    for name in _READING_METHODS:
        _saved_methods[name] = torch.Tensor.__dict__.get(name)
        setattr(torch.Tensor, name, _materializing(name))
    for name in _RAW_POINTER_METHODS:
        _saved_methods[name] = torch.Tensor.__dict__.get(name)
        setattr(torch.Tensor, name, _pinning(name))


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


def _forked() -> None:
    global _session
    _session = None
    _C.after_fork_in_child()


register_optimizer_step_pre_hook(_step_begins)
register_optimizer_step_post_hook(_step_ends)
os.register_at_fork(after_in_child=_forked)
_C.set_error_factory(make_out_of_budget_error)
