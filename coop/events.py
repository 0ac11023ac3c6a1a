"""The native event log (csrc/core/events.h) as a numpy structured array."""

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EVENT_DTYPE", "EventKind", "as_events"]


class EventKind(enum.IntEnum):
    """What happened; which fields mean something is said in csrc/core/events.h."""

    ALLOCATE = 0
    FREE = 1
    EVICT = 2
    REPLAY = 3
    SEARCH = 4
    STEP = 5
    OPERATOR = 6
    ROOT = 7
    HAND_OVER = 8
    RECORD = 9
    PIN = 10
    UNPIN = 11


EVENT_DTYPE = np.dtype(
    [
        ("offset", "<i8"),
        ("bytes", "<i8"),
        ("clock", "<i8"),
        ("amount", "<i8"),
        ("value", "<i8"),
        ("op", "<i4"),
        ("kind", "u1"),
        ("detail", "u1"),
        ("source", "<u2"),
    ]
)


def as_events(log: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The bytes of a log, as `Simulator.events()` gives them, with named fields."""
    return log.view(EVENT_DTYPE)
