"""Makes a call plain and with its arguments evicted, and says how the two compare."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

import coop
from tests.operators.verdict import _difference
from tests.perturb import FILLS, perturbed_malloc

from .databases import Call

BUDGET_BYTES = 2**28
# An address, or an object's: another in each run.
ADDRESSES = ("_cdata", "data_ptr", "_base", "grad_fn", "_grad_fn", "_fw_grad")


@dataclass(frozen=True)
class Judgement:
    """`kind`: same, refused (by torch, with and without a budget), varies (in plain torch too),
    evicted (an evicted tensor was met), error or wrong. The last three are findings."""

    kind: str
    detail: str = ""
    num_arguments: int = 0  # tensors with bytes, of all that the call could reach
    num_evicted: int = 0  # when it began


FINDINGS = ("evicted", "error", "wrong")


def judge(call: Call) -> Judgement:
    """How it compares with the same call in plain torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = _attempt(call, None)
        with coop.budget(BUDGET_BYTES, device="cpu", small_bytes=0) as session:
            actual, counts = _attempt(call, session)
            gc.collect()
        kind, detail = _compared(call, expected, actual)
    return Judgement(kind, detail, *counts)


def _compared(call: Call, expected: Any, actual: Any) -> tuple[str, str]:
    if isinstance(actual, Exception) and "evicted" in str(actual):
        return "evicted", str(actual).splitlines()[0]
    if isinstance(expected, Exception):
        # Not a call that fits: all that matters is that it ended as it does without a budget.
        if isinstance(actual, Exception):
            return "refused", ""
        return "wrong", f"a result, where plain torch raises {type(expected).__name__}: {expected}"
    name = call.name.split(" ")[0].removesuffix(".__get__")
    if name.startswith("torch.") and name.endswith(ADDRESSES):
        return ("error", str(actual)) if isinstance(actual, Exception) else ("varies", "")
    difference = _difference(expected, actual, _Compared())
    if difference is None:
        return "same", ""
    # Before it is held against the engine: does it read memory that nobody has written?
    for fill in FILLS:
        with perturbed_malloc(fill):
            again, _ = _attempt(call, None)
        if _difference(expected, again, _Compared()) is not None:
            return "varies", ""
    return ("error" if isinstance(actual, Exception) else "wrong"), difference


class _Compared:
    """What `_difference` wants to know of a case."""

    operator = ""


def _attempt(call: Call, session: coop.Session | None) -> tuple[Any, tuple[int, int]]:
    counts = (0, 0)
    torch.manual_seed(0)
    try:
        args, kwargs = call.arguments()
        if session is not None:
            session._engine.evict_all()
            reached = [t for t in _tensors((args, kwargs)) if t.untyped_storage().nbytes()]
            counts = (len(reached), sum(not coop.is_resident(tensor) for tensor in reached))
        return _plain(call.function(*args, **kwargs)), counts
    except Exception as error:
        return error.with_traceback(None), counts


def _tensors(arguments: Any) -> Iterator[Tensor]:
    """Strided ones, also those of modules and optimizers."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, nn.Module):
            yield from (t for t in (*leaf.parameters(), *leaf.buffers()) if not is_lazy(t))
        elif isinstance(leaf, torch.optim.Optimizer):
            yield from _tensors(leaf.state_dict())
        elif isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_nested:
            yield leaf


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
