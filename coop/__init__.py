"""Run an unmodified eager PyTorch training loop inside a hard memory budget."""

from coop import _native as _native
from coop.errors import LostTensorError, OutOfBudgetError
from coop.session import (
    Session,
    Stats,
    allow_replay,
    budget,
    evict,
    install,
    is_resident,
    materialize,
    pin,
    unpin,
)

__all__ = [
    "LostTensorError",
    "OutOfBudgetError",
    "Session",
    "Stats",
    "allow_replay",
    "budget",
    "evict",
    "install",
    "is_resident",
    "materialize",
    "pin",
    "unpin",
]
