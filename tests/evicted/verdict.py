"""Makes a call plain and with its arguments evicted, and says how the two compare."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import torch
from torch import Tensor

import coop
from tests.operators.verdict import _difference
from tests.perturb import FILLS, perturbed_malloc

from .calls import Call

BUDGET_BYTES = 2**28
# Torch does not say what these are: an address, or whatever memory held.
VARIES = ("empty", "resize", "rand", "_cdata", "data_ptr", "new_empty", "dropout", "bernoulli")


def judge(call: Call) -> str | None:
    """What differs, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _attempt(call, None)
        with coop.budget(BUDGET_BYTES, device="cpu", small_bytes=0) as session:
            actual = _attempt(call, session)
            gc.collect()
    if isinstance(actual, Exception) and "evicted" in str(actual):
        return f"met an evicted tensor: {str(actual).splitlines()[0]}"
    if isinstance(expected, Exception):
        # Not a call that fits: all that matters is that it ended as it does without a budget.
        return None if isinstance(actual, Exception) else "a result, where plain raises"
    if any(word in call.name for word in VARIES) and not isinstance(actual, Exception):
        return None
    difference = _difference(expected, actual, _Compared())
    if difference is None or isinstance(actual, Exception):
        return difference
    # Before it is held against the engine: does it read memory that nobody has written?
    for fill in FILLS:
        with perturbed_malloc(fill):
            again = _attempt(call, None)
        if _difference(expected, again, _Compared()) is not None:
            return None
    return difference


class _Compared:
    """What `_difference` wants to know of a case."""

    operator = ""


def _attempt(call: Call, session: coop.Session | None) -> Any:
    torch.manual_seed(0)
    try:
        args, kwargs = call.arguments()
        if session is not None:
            session._engine.evict_all()
        result = call.function(*args, **kwargs)
        return _plain(result)
    except Exception as error:
        return error.with_traceback(None)


def _plain(result: Any) -> Any:
    """Without what cannot be compared outside: arrays become tensors, results are copies."""
    if type(result).__module__ == "numpy":
        return (
            torch.from_numpy(result.copy()) if hasattr(result, "shape") and result.shape else result
        )
    if isinstance(result, (list, tuple)) and type(result) in (list, tuple):
        return type(result)(_plain(item) for item in result)
    if isinstance(result, Tensor):
        return result.detach().clone() if result.layout == torch.strided else result
    return result
