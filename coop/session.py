"""Running code inside a memory budget."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from coop import gpus, guards
from coop._native import _C
from coop.errors import LostTensorError, OutOfBudgetError, make_out_of_budget_error
from coop.events import as_events
from coop.profiles import CPU_PROFILE
from coop.progress import StepCallback, StepMeter
from coop.recording import DEFAULT_MAX_EVENTS, Failure, Recording, SourceLine
from coop.sizes import format_bytes, parse_bytes
from coop.stats import Stats
from coop.trace import Header, write_recorded

__all__ = [
    "Session",
    "allow_replay",
    "budget",
    "current_session",
    "evict",
    "install",
    "is_resident",
    "materialize",
    "pin",
    "unpin",
]

PolicyName = Literal["coop", "coop-paper", "dtr", "dte"]

# Below this not even the area for small tensors has room.
SMALLEST_BUDGET_BYTES = 64 * 1024
# Blocks begin at multiples of these.
CPU_ALIGNMENT = 64
CUDA_ALIGNMENT = 512
# Values up to this size are never evicted.
SMALL_BYTES = 10 * 1024
# Steps that fitted without a search, after which operators are not recorded any more. Not in main
# memory, where what has to be saved after all would be outside of the budget.
CPU_QUIET_AFTER = 0
CUDA_QUIET_AFTER = 4


class Session:
    """One stay inside a budget; made by `coop.budget`."""

    def __init__(self, engine: Any, policy: PolicyName, device: str, alignment: int) -> None:
        self._engine = engine
        self._policy = policy
        self._device = device
        self._final: dict[str, Stats] = {}
        self._pinned: dict[str, str] = {}
        self._recorded = False
        self._recording: Recording | None = None
        self._failures: list[Failure] = []
        self._step_callbacks: list[StepCallback] = []
        self._meter: StepMeter | None = None
        self._is_tracing = False
        self._trace = b""  # what was recorded, once the budget is left
        self._trace_header = Header(
            device=device, alignment=alignment, header_bytes=engine.header_bytes()
        )

    def stats(self, device: str | torch.device | int | None = None) -> Stats:
        """What happened so far; after the budget was left, what had happened by then.

        Every GPU has an arena of its own; without `device`, the session's is meant.
        """
        name = self._device if device is None else str(torch.device(device))
        if self._final:
            found = self._final.get(name)
        else:
            engine = self._engines().get(name)
            found = engine and Stats(**engine.stats())
        if found is None:
            raise ValueError(f"nothing was allocated on {name!r} in this budget")
        return found

    def pinned_operators(self) -> dict[str, str]:
        """Operators whose results stayed in memory because they are not recomputed, and why."""
        engine = self._engine
        return self._pinned if engine is None else dict(engine.pinned_operators())

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

        Operators are remembered with the line of the program that asked for them.

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
            sources=[SourceLine(*line) for line in _C.sources()],
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

    def save_still(self, path: str | Path, title: str = "") -> None:
        """Write the recorded events as a PNG picture; needs matplotlib (the extra `plot`)."""
        from coop.report import save_still

        save_still(self.recording(), path, title)

    def start_trace(self, *, source_lines: bool = False) -> None:
        """From now on, remember what the program does to memory; see `coop.record`.

        With `source_lines`, every operator comes with the line of your code that called it.
        """
        self._is_tracing = True
        self._engine.start_recording(source_lines)

    def save_trace(self, path: str | Path, comment: str = "") -> None:
        """Write the trace since `start_trace` and end it: `python -m coop plan` reads it."""
        if not self._is_tracing:
            raise RuntimeError("no trace was recorded: call session.start_trace() before")
        self._is_tracing = False
        entries = self._trace if self._engine is None else self._engine.stop_recording()
        write_recorded(path, replace(self._trace_header, comment=comment), entries)

    def drop_trace(self) -> None:
        """End the trace since `start_trace` without writing it."""
        self._is_tracing = False
        self._engine.stop_recording()

    def _end_step(self) -> None:
        if self._meter is None:
            return
        step = self._meter.measure(self.stats().as_dict())
        for callback in list(self._step_callbacks):
            callback(step)

    def _engines(self) -> dict[str, Any]:
        """By device: of all GPUs that were used, if it is a GPU's session."""
        if self._device == "cpu":
            return {self._device: self._engine}
        return {engine.device(): engine for engine in _C.cuda_engines()}

    def _remember(self) -> None:
        """Keeps what may be asked for after the end."""
        self._final = {name: self.stats(name) for name in self._engines()}
        self._pinned = self.pinned_operators()
        if self._recorded:
            self._recording = self.recording()
            self._engine.log_events(False)
        self._trace = self._engine.stop_recording()


_session: Session | None = None


def current_session() -> Session | None:
    """The session that the program is in, if it is in a budget."""
    return _session


def _engine_of(tensor: Tensor | torch.UntypedStorage) -> Any:
    if _session is None:
        raise RuntimeError("this needs a budget: call it inside `with coop.budget(...)`")
    if tensor.is_cuda and gpus.is_installed():
        return _C.cuda_engine(tensor.device.index)
    return _session._engine


def _config(
    num_bytes: int,
    policy: str,
    switches: dict[str, bool],
    small_bytes: int,
    alignment: int,
    quiet_after: int,
) -> Any:
    if num_bytes < SMALLEST_BUDGET_BYTES:
        raise ValueError(
            f"a budget of {num_bytes} bytes is too small: at least "
            f"{format_bytes(SMALLEST_BUDGET_BYTES)}"
        )
    if quiet_after < 0:
        raise ValueError(f"quiet_after is a number of steps, or 0 for never, not {quiet_after}")
    return _C.Config(
        num_bytes,
        policy,
        alignment=alignment,
        small_bytes=small_bytes,
        quiet_after=quiet_after,
        **switches,
    )


@contextlib.contextmanager
def budget(
    size: int | str,
    *,
    device: str | torch.device = "cpu",
    policy: PolicyName = "coop",
    window: bool = True,
    partition: bool = True,
    inplace: bool = True,
    measure_costs: bool = False,
    events: bool = False,
    paranoid: bool = False,
    small_bytes: int = SMALL_BYTES,
    quiet_after: int | None = None,
) -> Iterator[Session]:
    """Run the body inside `size` bytes of memory.

    Every tensor made on the device by this thread (and by autograd for it) lives in one region of
    exactly that size. When an allocation does not fit, values that can be recomputed are evicted;
    they come back when an operator needs them. Results are the same bits as without a
    budget.

    On `"cuda"` this is `install` for the duration of the body: CUDA must not have been started
    before the first budget of a process, and all budgets of a process have the same size.

    Args:
        size: bytes, or a size such as `"600MiB"` (2**20) or `"8GB"` (10**9); on `"cuda"` also a
            share of the free memory, such as `"80%"`.
        device: `"cpu"` or `"cuda"`.
        policy: what chooses the evictions: `"coop"`; `"coop-paper"`, the same as published, without
            what docs/decisions/0004 adds; or the baselines `"dtr"` and `"dte"`.
        window: with `"coop"`, evict the cheapest contiguous window (else one value at a time).
        partition: with `"coop"`, place cheap and expensive values at opposite ends.
        inplace: with `"coop"`, keep in-place writes in place (else copy on write).
        measure_costs: take the measured time of operators as their cost instead of a roofline
            estimate (CPU only). Decisions then differ from run to run; results do not.
        events: remember what happens to every block, for `session.save_report`.
        paranoid: evict everything that can be after every operator. For tests.
        small_bytes: values up to this size live in an area of their own and are never evicted.
        quiet_after: after so many steps that fitted without an eviction, operators are not recorded
            any more, until one does not fit: what was not recorded is then saved to main memory
            when it is evicted. 0: never, the default on the CPU; on `"cuda"` it is 4.

    Raises:
        OutOfBudgetError: by an operator that does not fit. Recoverable.
        LostTensorError: on leaving, when tensors could not be given back.
    """
    global _session
    switches = {"window": window, "partition": partition, "inplace": inplace}
    if _session is not None:
        raise RuntimeError(
            f"already inside a budget of {format_bytes(_session.stats().budget_bytes)}: "
            "budgets do not nest"
        )
    if torch.device(device).type == "cuda":
        session = install(
            size,
            device=device,
            policy=policy,
            paranoid=paranoid,
            small_bytes=small_bytes,
            quiet_after=quiet_after,
            **switches,
        )
    else:
        quiet = CPU_QUIET_AFTER if quiet_after is None else quiet_after
        config = _config(parse_bytes(size), policy, switches, small_bytes, CPU_ALIGNMENT, quiet)
        profile = _C.DeviceProfile(**asdict(CPU_PROFILE))
        engine = _C.Engine.cpu(config, profile, measure_costs, paranoid)
        session = Session(engine, policy, "cpu", CPU_ALIGNMENT)
    try:
        if _session is None:
            _start(session)
        if events:
            session.record_events()
        yield session
    finally:
        # An interrupt may come at any call: the engines are closed all the same.
        _session = None
        engines = [session._engine]
        try:
            guards.release()
            engines = list(session._engines().values())
            session._remember()
        finally:
            session._engine = None
            lost = [line for engine in engines for line in engine.close()]
    if lost:
        raise LostTensorError(
            f"{len(lost)} tensors could not be given back on leaving the budget of "
            f"{size!r}: " + "; ".join(lost)
        )


def _start(session: Session) -> None:
    global _session
    _session = session
    guards.guard(_engine_of)
    session._engine.activate()


def install(
    size: int | str,
    *,
    device: str | torch.device = "cuda",
    policy: PolicyName = "coop",
    window: bool = True,
    partition: bool = True,
    inplace: bool = True,
    paranoid: bool = False,
    small_bytes: int = SMALL_BYTES,
    quiet_after: int | None = None,
) -> Session:
    """Give every GPU of this process a budget of `size`, from now on.

    Must be called before CUDA is started: at the top of the program, before any `.cuda()`. Takes
    the memory at once, so the bound is physical. Arguments as for `budget`.
    """
    if torch.device(device).type != "cuda":
        raise ValueError(f"coop.install is for CUDA devices, not {device!r}: use coop.budget")
    if _session is not None:
        raise RuntimeError("already inside a budget: budgets do not nest")
    switches = {"window": window, "partition": partition, "inplace": inplace}
    index = torch.device(device).index or 0

    quiet = CUDA_QUIET_AFTER if quiet_after is None else quiet_after

    def configure(num_bytes: int) -> Any:
        return _config(num_bytes, policy, switches, small_bytes, CUDA_ALIGNMENT, quiet)

    engine = gpus.make_engine(size, index, configure, paranoid)
    session = Session(engine, policy, f"cuda:{index}", CUDA_ALIGNMENT)
    _start(session)
    return session


def materialize(tensor: Tensor) -> Tensor:
    """Bring the tensor's bytes back now, if they are evicted. Returns the tensor."""
    _engine_of(tensor).materialize(tensor)
    return tensor


def evict(tensor: Tensor) -> bool:
    """Give up the tensor's bytes now. False if they cannot be recomputed or are pinned."""
    return bool(_engine_of(tensor).evict(tensor))


def pin(tensor: Tensor) -> Tensor:
    """Keep the tensor's bytes in memory, at the same address, until `unpin`. Returns the tensor."""
    _engine_of(tensor).pin(tensor, False)
    return tensor


def unpin(tensor: Tensor) -> Tensor:
    """Undo all `pin`s of the tensor. Returns the tensor.

    What stays for the sake of others (its address was asked for, its memory is shared with an
    array, another stream uses it) still stays.
    """
    _engine_of(tensor).unpin(tensor)
    return tensor


def is_resident(tensor: Tensor) -> bool:
    """Whether the tensor's bytes are in memory now."""
    return _session is None or bool(_engine_of(tensor).is_resident(tensor))


def allow_replay(operator: str) -> None:
    """Let the results of a custom operator, such as `"mylib::op"`, be evicted and recomputed.

    You vouch that it is deterministic, and that it writes only what its schema says it writes.
    """
    _C.allow_replay(operator)


_engine_without_session: Any = None


@contextlib.contextmanager
def steps_of(engine: Any) -> Iterator[None]:
    """Tells an engine that has no session of the steps of the body."""
    global _engine_without_session
    _engine_without_session = engine
    try:
        yield
    finally:
        _engine_without_session = None


def _step_begins(*_: Any) -> None:
    if _engine_without_session is not None:
        _engine_without_session.begin_step()
    if _session is not None and _C.is_thread_enabled():
        for engine in _session._engines().values():
            engine.begin_step()


def _step_ends(*_: Any) -> None:
    if _engine_without_session is not None:
        _engine_without_session.end_step(True)
    if _session is not None and _C.is_thread_enabled():
        inside_backward = torch._C._current_graph_task_id() != -1
        for engine in _session._engines().values():
            engine.end_step(not inside_backward)
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
    if _session is not None:
        guards.release()
    _session = None
    _C.after_fork_in_child()


register_optimizer_step_pre_hook(_step_begins)
register_optimizer_step_post_hook(_step_ends)
os.register_at_fork(
    before=_C.before_fork, after_in_parent=_C.after_fork_in_parent, after_in_child=_forked
)
_C.set_error_factory(_make_error)
guards.watch()
