"""Runs a case plain and inside a budget, and says how the two compare."""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

import coop
from tests.bits import bits
from tests.perturb import FILLS, perturbed_malloc

from .cases import UNDEFINED_RESULTS, Case

BUDGET_BYTES = 2**30


@dataclass(frozen=True)
class Verdict:
    """How they compare: same, wrong, error, varies (plain runs differ too), refused (by torch), raw
    (it would have read memory without an operator, and said so)."""

    kind: str
    detail: str
    stats: coop.Stats | None = None
    kept: dict[str, str] | None = None


def judge(case: Case, budget_bytes: int = BUDGET_BYTES, **options: Any) -> Verdict:
    """Everything evictable is evicted after every operator, small tensors too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _attempt(case)
        actual, session = _attempt_inside(case, budget_bytes, options)
        difference = _difference(expected, actual, case)
        if difference is None:
            kind = "refused" if isinstance(expected, Exception) else "same"
            detail = str(expected) if isinstance(expected, Exception) else ""
            return Verdict(kind, detail, session.stats(), session.kept_operators())
        if isinstance(actual, RuntimeError) and "coop.materialize" in str(actual):
            return Verdict("raw", difference)  # Rule 13
        # Before it is held against the engine: does it read memory that nobody has written?
        for fill in FILLS:
            with perturbed_malloc(fill):
                again = _attempt(case)
            if _difference(expected, again, case) is not None:
                return Verdict("varies", difference)
    return Verdict("error" if isinstance(actual, Exception) else "wrong", difference)


def _attempt(case: Case) -> Any:
    try:
        return case.run()
    except Exception as error:
        return error.with_traceback(None)


def _attempt_inside(
    case: Case, budget_bytes: int, options: dict[str, Any]
) -> tuple[Any, coop.Session]:
    options = {"paranoid": True, "small_bytes": 0, **options}
    try:
        with coop.budget(budget_bytes, device="cpu", **options) as session:
            result = _attempt(case)
            if isinstance(result, Exception):
                gc.collect()
    except coop.LostTensorError as error:
        result = error
    return result, session


def _difference(expected: Any, actual: Any, case: Case) -> str | None:
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        if type(expected) is type(actual):
            return None
        return f"{_outcome(actual)} inside, {_outcome(expected)} outside"
    expected_leaves, expected_spec = tree_flatten(expected)
    actual_leaves, actual_spec = tree_flatten(actual)
    if expected_spec != actual_spec:
        return f"other results: {actual_spec}, not {expected_spec}"
    for number, (left, right) in enumerate(zip(expected_leaves, actual_leaves, strict=True)):
        how = _how_they_differ(left, right, case.operator in UNDEFINED_RESULTS)
        if how is not None:
            return f"leaf {number}: {how}"
    return None


def _outcome(result: Any) -> str:
    if isinstance(result, Exception):
        return f"{type(result).__name__}({str(result).splitlines()[0] if str(result) else ''})"
    return "a result"


def _how_they_differ(expected: Any, actual: Any, undefined: bool) -> str | None:
    if not isinstance(expected, Tensor):
        if type(expected) is not type(actual):
            return f"{actual!r}, not {expected!r}"
        if isinstance(expected, (int, float, complex, bool)) and repr(expected) != repr(actual):
            return f"{actual!r}, not {expected!r}"
        return None
    for what in ("dtype", "shape", "layout", "is_quantized"):
        if getattr(expected, what) != getattr(actual, what):
            return f"{what} is {getattr(actual, what)}, not {getattr(expected, what)}"
    if undefined:
        return None
    for left, right in zip(_parts(expected), _parts(actual), strict=True):
        if left.stride() != right.stride():
            return f"strides are {right.stride()}, not {left.stride()}"
        wrong = int((bits(left) != bits(right)).count_nonzero())
        if wrong:
            return f"{wrong} of {len(bits(left))} bytes differ: {right}, not {left}"
    return None


def _parts(tensor: Tensor) -> list[Tensor]:
    tensor = tensor.detach()
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.layout != torch.strided:
        return [tensor.to_dense()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    return [tensor]
