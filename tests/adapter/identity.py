"""Whether two outcomes are the same bits, and where exactly they are not."""

from __future__ import annotations

import torch
from torch import Tensor

from .outcome import Outcome


def assert_identical(expected: Outcome, actual: Outcome) -> None:
    """Bitwise: -0.0 is not 0.0, and a NaN equals a NaN with the same bits."""
    difference = first_difference(expected, actual)
    assert difference is None, difference


def first_difference(expected: Outcome, actual: Outcome) -> str | None:
    """Names the first tensor that differs, and how; None where all are the same bits."""
    if list(expected.tensors) != list(actual.tensors):
        missing = [name for name in expected.tensors if name not in actual.tensors]
        added = [name for name in actual.tensors if name not in expected.tensors]
        return f"other tensors: missing {missing}, added {added}"
    for name, tensor in expected.tensors.items():
        how = _how_they_differ(tensor, actual.tensors[name])
        if how is not None:
            return f"{name}: {how}"
    return None


def _how_they_differ(expected: Tensor, actual: Tensor) -> str | None:
    for what, left, right in (
        ("dtype", expected.dtype, actual.dtype),
        ("shape", tuple(expected.shape), tuple(actual.shape)),
    ):
        if left != right:
            return f"{what} is {right}, not {left}"
    wrong = (_bits(expected) != _bits(actual)).any(dim=-1).nonzero().flatten()
    if not len(wrong):
        return None
    first = int(wrong[0])
    index = tuple(int(i) for i in torch.unravel_index(wrong[0], expected.shape))
    return (
        f"{len(wrong)} of {expected.numel()} elements differ, "
        f"the first at {index}: {actual.flatten()[first]}, not {expected.flatten()[first]}"
    )


def _bits(tensor: Tensor) -> Tensor:
    """One row of bytes an element."""
    elements = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
    return elements.view(torch.uint8).view(len(elements), elements.element_size())
