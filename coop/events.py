"""The native event log (csrc/core/events.h) as a numpy structured array."""

import enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coop._native import _C

__all__ = ["EVENT_DTYPE", "EventKind", "as_events"]


class EventKind(enum.IntEnum):
    """What happened; csrc/core/events.h says which fields mean something. Tests compare the two."""

    ALLOCATE = 0
    FREE = 1
    EVICT = 2
    REPLAY = 3
    SEARCH = 4
    STEP = 5
    OPERATOR = 6
    ROOT = 7
    HAND_OVER = 8
    RECIPE = 9
    KEEP = 10
    UNKEEP = 11
    SAVE = 12
    LOAD = 13
    UNSAVE = 14


EVENT_DTYPE: Final[np.dtype[np.void]] = _C.event_dtype()


def as_events(log: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The bytes of a log, as `Simulator.events()` gives them, with named fields."""
    return log.view(EVENT_DTYPE)
