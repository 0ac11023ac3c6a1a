"""What a session leaves behind for reports: its event log, and the names that explain it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from coop._native import _C
from coop.events import EventKind, as_events
from coop.graph_costs import CONTENTS
from coop.progress import Step, StepMeter
from coop.ranks import current_rank
from coop.stats import Stats

__all__ = ["DEFAULT_MAX_EVENTS", "Failure", "Recording", "SessionEvents", "SourceLine"]

# 96 MB of log: some hundred steps of a small network, a few of a large one.
DEFAULT_MAX_EVENTS = 2_000_000
# A program that catches errors and tries again, for hours, needs only the newest.
MAX_FAILURES = 16
# More than the log has room for in any real program.
MAX_STEPS = 100_000


@dataclass(frozen=True)
class SourceLine:
    """The line of the user's program that asked for an operator."""

    file: str
    function: str
    line: int
    backward: bool  # the operator is part of the gradient of what the line asked for

    @property
    def place(self) -> str:
        """For people: `train.py:12 in forward`; the file as it is called here, or imported."""
        path, name = Path(self.file), self.file
        for folder in (str(Path.cwd()), *sys.path):
            if folder and path.is_relative_to(folder):
                name = str(path.relative_to(folder))
                break
        return f"{name}:{self.line} in {self.function}" + (", backward" if self.backward else "")

    @property
    def text(self) -> str:
        """What stands there; empty when the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True)
class Failure:
    """An operator that did not fit: what an `OutOfBudgetError` said."""

    message: str
    operator: str
    replaying: str
    shortage: dict[str, Any]
    num_steps: int = 0  # that had ended by then


@dataclass(frozen=True)
class Recording:
    """Everything that happened while events were recorded."""

    events: npt.NDArray[Any]  # of coop.events.EVENT_DTYPE
    operator_names: list[str]  # by Event.op
    sources: list[SourceLine]  # by Event.source; the first stands for "not known"
    keep_reasons: list[str]  # by the amount of a KEEP event
    num_dropped: int  # events that came after the log was full
    stats: dict[str, float]  # of the whole session
    policy: str
    device: str
    failures: list[Failure]
    summary: tuple[str, ...] = ()  # the five lines of coop.summary
    steps: tuple[Step, ...] = ()  # those that ended while it recorded
    contents: dict[str, str] = field(default_factory=dict)  # of compiled graphs, by their names
    rank: str = ""  # of several processes: which one this is


class SessionEvents:
    """`session.events`: the event log of a session, and what is made from it."""

    def __init__(
        self, engine: _C.Engine, policy: str, device: str, summarize: Callable[[str], list[str]]
    ) -> None:
        self._engine: _C.Engine | None = engine
        self._summarize = summarize
        self._policy = policy
        self._device = device
        self._is_recording = False
        self._failures: list[Failure] = []
        self._steps: list[Step] = []
        self._meter: StepMeter | None = None
        self._final: Recording | None = None

    def record(self, max_events: int = DEFAULT_MAX_EVENTS) -> None:
        """From now on, remember what happens to every block, for reports and snapshots.

        Operators are remembered with the line of the program that asked for them.

        An event takes 48 bytes of memory outside of the budget; those after the first `max_events`
        are counted, not kept.
        """
        if self._engine is None:
            raise RuntimeError("this budget was left: there is nothing more to record")
        self._is_recording = True
        self._meter = StepMeter(Stats(**self._engine.stats()).as_dict())
        self._engine.log_events(True, max_events)

    def recording(self) -> Recording:
        """What was recorded; after the budget was left, what had been by then."""
        if self._final is not None:
            return self._final
        if not self._is_recording or self._engine is None:
            raise RuntimeError(
                "no events were recorded: use coop.budget(..., events=True), or call "
                "session.events.record() before what the report is to show"
            )
        return Recording(
            events=as_events(self._engine.events()),
            operator_names=_C.operator_names(),
            sources=[SourceLine(*line) for line in _C.sources()],
            keep_reasons=self._engine.keep_reasons(),
            num_dropped=self._engine.num_dropped_events(),
            stats=Stats(**self._engine.stats()).as_dict(),
            policy=self._policy,
            device=self._device,
            failures=list(self._failures),
            summary=tuple(self._summarize("this page")),
            steps=tuple(self._steps),
            contents=dict(CONTENTS),
            rank=_rank_text(),
        )

    def lines_of_values(self) -> dict[int, str]:
        """Where each value was made, by its number, since `record` was called."""
        if not self._is_recording or self._engine is None:
            return {}
        events = as_events(self._engine.events())
        made = events[(events["kind"] == EventKind.ALLOCATE) & (events["source"] > 0)]
        lines = [SourceLine(*line) for line in _C.sources()]
        pairs = zip(made["value"].tolist(), made["source"].tolist(), strict=True)
        return {value: lines[source].place for value, source in pairs}

    def save_report(self, path: str | Path, title: str = "") -> None:
        """Write the recorded events as one HTML file that needs nothing else."""
        from coop.report import save_report

        save_report(self.recording(), path, title)

    def save_snapshot(self, path: str | Path) -> None:
        """Write the recorded events as a memory snapshot that pytorch.org/memory_viz opens."""
        from coop.report.snapshot import save_snapshot

        save_snapshot(self.recording(), path)

    def save_chrome_trace(self, path: str | Path) -> None:
        """Write the recorded events for Perfetto and chrome://tracing; `.gz` compresses."""
        from coop.report.chrome import save_chrome_trace

        save_chrome_trace(self.recording(), path)

    def save_still(self, path: str | Path, title: str = "") -> None:
        """Write the recorded events as a PNG picture; needs matplotlib (the extra `plot`)."""
        from coop.report import save_still

        save_still(self.recording(), path, title)

    @property
    def is_recording(self) -> bool:
        """Whether what happens is remembered."""
        return self._is_recording

    @property
    def last_failure(self) -> Failure | None:
        """The newest operator that did not fit."""
        return self._failures[-1] if self._failures else None

    def end_step(self, stats: Stats) -> None:
        """A step has ended; what it did is kept while events are recorded."""
        if self._meter is not None and len(self._steps) < MAX_STEPS:
            self._steps.append(self._meter.measure(stats.as_dict()))

    def add_failure(self, failure: Failure) -> None:
        """An operator did not fit."""
        self._failures.append(failure)
        del self._failures[:-MAX_FAILURES]

    def finish(self) -> None:
        """The budget ends: remembers what was recorded."""
        if self._is_recording and self._engine is not None:
            self._final = self.recording()
            self._engine.log_events(False)
            self._meter = None

    def let_go(self) -> None:
        """The engine is closed."""
        self._engine = None


def _rank_text() -> str:
    """Empty for one process alone."""
    rank = current_rank()
    return "" if rank is None else f"rank {rank.rank}, {rank.local_size} ranks on this machine"
