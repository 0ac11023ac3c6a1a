"""Running code inside a memory budget."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Unpack

from coop._native import _C
from coop.budget_size import announce, budget_bytes, memory_of
from coop.config import ALIGNMENT, Config, ConfigChanges, changed, choose_device
from coop.errors import LostTensorError, warn_of_old_name
from coop.measured_costs import MeasuredCosts
from coop.options import config_from_environment, from_environment
from coop.profiles import CPU_PROFILE
from coop.progress import StepCallback, StepMeter
from coop.recording import DEFAULT_MAX_EVENTS, Recording, SessionEvents
from coop.runtime import runtime
from coop.session_trace import SessionTrace
from coop.stats import Stats
from coop.summary import next_better, summarize

__all__ = [
    "Session",
    "allow_replay",
    "budget",
    "current_session",
    "evict",
    "install",
    "is_resident",
    "keep",
    "materialize",
    "pin",
    "unkeep",
    "unpin",
]


class Session:
    """One stay inside a budget; made by `coop.budget` and `coop.install`.

    Attributes:
        config: what the budget was given.
        events: the event log (`record`, `recording`, `save_report`, ...).
        trace: the trace for the planner (`start`, `save`, `drop`).
    """

    def __init__(self, engine: _C.Engine, config: Config, device: torch.device) -> None:
        self._device = str(device)
        self._begin = time.perf_counter()
        self._seconds: float | None = None
        self._live: _C.Engine | None = engine
        self.config = config
        self.events = SessionEvents(engine, config.policy, self._device, self.summary)
        self.trace = SessionTrace(engine, self._device, ALIGNMENT[device.type])
        self._most_bytes = memory_of(device)[1]
        self._could_copy = device.type == "cpu" and config.host_bytes("cpu") == 0
        self._final: dict[str, Stats] = {}
        self._kept: dict[str, str] = {}
        self._step_callbacks: list[StepCallback] = []
        self._meter: StepMeter | None = None
        self._costs = MeasuredCosts(engine, device) if config.measures_costs(device.type) else None

    def stats(self, device: str | torch.device | int | None = None) -> Stats:
        """What happened so far; after the budget was left, what had happened by then.

        Every GPU has an arena of its own; without `device`, the session's is meant.
        """
        name = self._device if device is None else str(torch.device(device))
        found: Stats | None
        if self._final:
            found = self._final.get(name)
        else:
            engine = self._engines().get(name)
            found = None if engine is None else Stats(**engine.stats())
        if found is None:
            raise ValueError(f"nothing was allocated on {name!r} in this budget")
        return found

    def kept_operators(self) -> dict[str, str]:
        """Operators whose results stayed in memory because they are not recomputed, and why."""
        return self._kept if self._live is None else self._live.kept_operators()

    def summary(self, report: str = "") -> list[str]:
        """What it needed, got and cost, what would be better, and where the report is: five lines.

        Args:
            report: where it is; empty when there is none.
        """
        stats = self.stats()
        failure = self.events.last_failure
        # One that the program went on after is none of the end.
        is_over = failure is not None and failure.num_steps == stats.num_steps
        return summarize(
            stats,
            device=self._device,
            policy=self.config.policy,
            seconds=time.perf_counter() - self._begin if self._seconds is None else self._seconds,
            most_bytes=self._most_bytes,
            enough_bytes=failure.shortage["sufficient_budget_bytes"] if failure and is_over else 0,
            report=report,
        )

    def _save_costs(self) -> None:
        if self._costs is not None:
            self._costs.save()

    def next_better(self) -> str:
        """The budget, or what else, that would help most, by what happened so far."""
        return next_better(self.stats(), self._most_bytes)

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
        """The same as `session.events.record`."""
        self.events.record(max_events)

    def recording(self) -> Recording:
        """The same as `session.events.recording`."""
        return self.events.recording()

    def save_report(self, path: str | Path, title: str = "") -> None:
        """The same as `session.events.save_report`."""
        self.events.save_report(path, title)

    def save_snapshot(self, path: str | Path) -> None:
        """The same as `session.events.save_snapshot`."""
        self.events.save_snapshot(path)

    def save_chrome_trace(self, path: str | Path) -> None:
        """The same as `session.events.save_chrome_trace`."""
        self.events.save_chrome_trace(path)

    def save_still(self, path: str | Path, title: str = "") -> None:
        """The same as `session.events.save_still`."""
        self.events.save_still(path, title)

    def start_trace(self, *, source_lines: bool = False) -> None:
        """The same as `session.trace.start`."""
        self.trace.start(source_lines=source_lines)

    def save_trace(self, path: str | Path, comment: str = "") -> None:
        """The same as `session.trace.save`."""
        self.trace.save(path, comment)

    def pinned_operators(self) -> dict[str, str]:
        """Deprecated: the old name of `kept_operators`."""
        warn_of_old_name("Session.pinned_operators", "Session.kept_operators")
        return self.kept_operators()

    # --- for the runtime ---------------------------------------------------------------------

    @property
    def _engine(self) -> _C.Engine:
        """Of the session's device."""
        if self._live is None:
            raise RuntimeError("this budget was left")
        return self._live

    def _engines(self) -> dict[str, _C.Engine]:
        """By device: of all GPUs that were used, if it is a GPU's session."""
        if self._device == "cpu":
            return {self._device: self._engine}
        return {engine.device(): engine for engine in _C.cuda_engines()}

    def _owns(self, tensor: Tensor) -> bool:
        """Whether the tensor is in the budget of the session's device."""
        return self._engine.owns(tensor)

    def _end_step(self) -> None:
        if self._meter is None and not self.events.is_recording:
            return
        stats = self.stats()
        self.events.end_step(stats)
        if self._meter is None:
            return
        step = self._meter.measure(stats.as_dict())
        for callback in list(self._step_callbacks):
            callback(step)

    def _remember(self) -> None:
        """Keeps what may be asked for after the end."""
        self._seconds = time.perf_counter() - self._begin
        self._final = {name: self.stats(name) for name in self._engines()}
        self._kept = self.kept_operators()
        self.events.finish()
        self.trace.finish()

    def _let_go(self) -> None:
        """The engine is being closed."""
        self._live = None
        self.events.let_go()
        self.trace.let_go()


def current_session() -> Session | None:
    """The session that the program is in, if it is in a budget."""
    return runtime.session


@contextlib.contextmanager
def budget(
    size: int | str | None = None,
    *,
    device: str | torch.device | None = None,
    config: Config | None = None,
    **changes: Unpack[ConfigChanges],
) -> Iterator[Session]:
    """Run the body inside `size` bytes of memory.

    Every tensor made on the device by this thread, by autograd for it, and by threads that are
    started inside, lives in one region of exactly that size. When an allocation does not fit,
    values that can be recomputed are evicted; they come back when an operator needs them. Results
    are the same bits as without a budget.

    On a GPU this is `install` for the duration of the body: CUDA must not have been started before
    the first budget of a process, and all budgets of a process have the same size.

    Args:
        size: bytes, or a size such as `"600MiB"` (2**20) or `"8GB"` (10**9), or a share of the free
            memory, such as `"80%"`. None: what `COOP_BUDGET` says; where it says nothing, the
            GPU's free memory less a margin, or a share of the main memory that is available, and
            one line on stderr says how much that is.
        device: `"cpu"` or `"cuda"`; None is what `COOP_DEVICE` says, else the GPU if there is one,
            else the CPU.
        config: how the budget works, see `coop.Config`; None is what the environment says
            (docs/options.md), else the defaults.
        **changes: fields of the configuration, such as `policy="dtr"` or `events=True`.

    Raises:
        TypeError: for a keyword argument that is no field of `coop.Config`.
        ValueError: for a budget that is not one, or more than there is, or a configuration that the
            device does not have.
        OutOfBudgetError: by an operator that does not fit. Recoverable.
        LostTensorError: on leaving, when tensors could not be given back.

    Warns:
        SlowStepWarning: once, when a step recomputes for longer than a plain step takes.
    """
    session = _make_session(size, _choose(device), _configure(config, changes, "coop.budget"))
    try:
        _start(session)
        yield session
    finally:
        try:
            session._save_costs()
            lost = runtime.stop(session)
        except BaseException:
            runtime.stop(session)  # it may have been interrupted before it had begun
            raise
    if lost:
        raise LostTensorError(
            f"{len(lost)} tensors could not be given back on leaving the budget of "
            f"{size!r}: " + "; ".join(lost)
        )


def install(
    size: int | str | None = None,
    *,
    device: str | torch.device | None = None,
    config: Config | None = None,
    **changes: Unpack[ConfigChanges],
) -> Session:
    """Give every GPU of this process a budget of `size`, from now on.

    Must be called before CUDA is started: at the top of the program, before any `.cuda()`. Takes
    the memory at once, so the bound is physical. Arguments as for `budget`.
    """
    config = _configure(config, changes, "coop.install")
    chosen = _choose(device)
    if chosen.type != "cuda":
        which = "there is none here" if device is None else f"not for {device!r}"
        raise ValueError(f"coop.install is for GPUs, {which}: use `with coop.budget(...)`")
    session = _make_session(size, chosen, config)
    _start(session)
    atexit.register(session._save_costs)
    return session


def _configure(config: Config | None, changes: ConfigChanges, caller: str) -> Config:
    return changed(config_from_environment() if config is None else config, changes, caller)


def _choose(device: str | torch.device | None) -> torch.device:
    return choose_device(from_environment("device") if device is None else device)


def _make_session(size: int | str | None, device: torch.device, config: Config) -> Session:
    runtime.check_no_session()
    size = from_environment("budget") if size is None else size
    runtime.register()
    config.check_device(device)
    if device.type == "cuda":
        engine = runtime.gpus.make_engine(
            size, device, lambda num_bytes, link: config.native(num_bytes, "cuda", link), config
        )
    else:
        native = config.native(budget_bytes(size, device), "cpu")
        profile = _C.DeviceProfile(**asdict(CPU_PROFILE))
        engine = _C.Engine.cpu(
            native,
            profile,
            config.measures_costs("cpu"),
            config.paranoid,
            config.host_dir or "",
        )
    if size is None and not from_environment("quiet"):
        announce(engine.stats()["budget_bytes"], device)
    return Session(engine, config, device)


def _start(session: Session) -> None:
    runtime.start(session)
    if session.config.events:
        session.events.record()


def materialize(tensor: Tensor) -> Tensor:
    """Bring the tensor's bytes back now, if they are evicted. Returns the tensor."""
    runtime.engine_of(tensor).materialize(tensor)
    return tensor


def evict(tensor: Tensor) -> bool:
    """Give up the tensor's bytes now. False if they cannot be recomputed or are kept."""
    return runtime.engine_of(tensor).evict(tensor)


def keep(tensor: Tensor) -> Tensor:
    """Keep the tensor's bytes in memory, at the same address, until `unkeep`.

    Returns the tensor.
    """
    runtime.engine_of(tensor).keep(tensor, "coop.keep", False)
    return tensor


def unkeep(tensor: Tensor) -> Tensor:
    """Undo all `keep`s of the tensor. Returns the tensor.

    What stays for the sake of others (its address was asked for, its memory is shared with an
    array, another stream uses it) still stays.
    """
    runtime.engine_of(tensor).unkeep(tensor)
    return tensor


def pin(tensor: Tensor) -> Tensor:
    """Deprecated: the old name of `keep`."""
    warn_of_old_name("coop.pin", "coop.keep")
    return keep(tensor)


def unpin(tensor: Tensor) -> Tensor:
    """Deprecated: the old name of `unkeep`."""
    warn_of_old_name("coop.unpin", "coop.unkeep")
    return unkeep(tensor)


def is_resident(tensor: Tensor) -> bool:
    """Whether the tensor's bytes are in memory now."""
    return runtime.session is None or runtime.engine_of(tensor).is_resident(tensor)


def allow_replay(operator: str) -> None:
    """Let the results of a custom operator, such as `"mylib::op"`, be evicted and recomputed.

    You vouch that it is deterministic, and that it writes only what its schema says it writes.
    """
    _C.allow_replay(operator)
