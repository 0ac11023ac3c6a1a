"""Run an unmodified eager PyTorch training loop inside a hard memory budget."""

import sys as _sys

try:
    from coop import _native as _native
    from coop.config import Config
    from coop.errors import LostTensorError, OutOfBudgetError, SlowStepWarning
    from coop.planner import largest_batch, plan, plan_trace, record_function
    from coop.session import (
        Session,
        allow_replay,
        budget,
        current_session,
        evict,
        install,
        is_resident,
        keep,
        materialize,
        pin,
        unkeep,
        unpin,
    )
    from coop.stats import Stats
    from coop.tracing import record
except ImportError:
    # `python -m coop doctor` explains what is wrong, so it has to start. ("-m" is what sys.argv
    # begins with while the package of a `python -m` is imported.)
    if _sys.argv[1:2] != ["doctor"] or _sys.argv[0].rpartition("/")[2] not in ("-m", "coop"):
        raise

__all__ = [
    "Config",
    "LostTensorError",
    "OutOfBudgetError",
    "Session",
    "SlowStepWarning",
    "Stats",
    "allow_replay",
    "budget",
    "current_session",
    "evict",
    "install",
    "is_resident",
    "keep",
    "largest_batch",
    "materialize",
    "pin",
    "plan",
    "plan_trace",
    "record",
    "record_function",
    "unkeep",
    "unpin",
]
