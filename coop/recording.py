"""What a session leaves behind for reports: its event log, and the names that explain it."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

__all__ = ["DEFAULT_MAX_EVENTS", "Failure", "Recording", "SourceLine"]

# 96 MB of log: some hundred steps of a small network, a few of a large one.
DEFAULT_MAX_EVENTS = 2_000_000


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


@dataclass(frozen=True)
class Recording:
    """Everything that happened while events were recorded."""

    events: npt.NDArray[Any]  # of coop.events.EVENT_DTYPE
    operator_names: list[str]  # by Event.op
    sources: list[SourceLine]  # by Event.source; the first stands for "not known"
    pin_reasons: list[str]  # by the amount of a PIN event
    num_dropped: int  # events that came after the log was full
    stats: dict[str, float]  # of the whole session
    policy: str
    device: str
    failures: list[Failure]
