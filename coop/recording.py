"""What a session leaves behind for reports: its event log, and the names that explain it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

__all__ = ["DEFAULT_MAX_EVENTS", "Failure", "Recording"]

# 96 MB of log: some hundred steps of a small network, a few of a large one.
DEFAULT_MAX_EVENTS = 2_000_000


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
    pin_reasons: list[str]  # by the amount of a PIN event
    num_dropped: int  # events that came after the log was full
    stats: dict[str, float]  # of the whole session
    policy: str
    device: str
    failures: list[Failure]
