"""The comparison itself: it sees one bit, and says which."""

from __future__ import annotations

import torch
from torch import Tensor

from .identity import first_difference
from .outcome import Outcome


def difference(left: Tensor, right: Tensor) -> str | None:
    return first_difference(Outcome({"t": left}), Outcome({"t": right}))


def test_equal_bits_are_identical_whatever_the_strides() -> None:
    x = torch.randn(3, 5)
    assert difference(x, x.t().contiguous().t()) is None


def test_a_nan_equals_a_nan_with_the_same_bits() -> None:
    assert difference(torch.tensor([float("nan")]), torch.tensor([float("nan")])) is None


def test_zero_and_minus_zero_differ() -> None:
    assert difference(torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0])) == (
        "t: 1 of 2 elements differ, the first at (1,): -0.0, not 0.0"
    )


def test_the_first_element_that_differs_is_named_by_its_index() -> None:
    x = torch.zeros(3, 4)
    y = x.clone()
    y[1, 2] = y[2, 3] = 1.0
    assert difference(x, y) == "t: 2 of 12 elements differ, the first at (1, 2): 1.0, not 0.0"


def test_a_scalar_that_differs_is_at_the_empty_index() -> None:
    assert difference(torch.tensor(1), torch.tensor(2)) == (
        "t: 1 of 1 elements differ, the first at (): 2, not 1"
    )


def test_dtype_and_shape_are_compared_before_the_bits() -> None:
    x = torch.zeros(2)
    assert difference(x, x.double()) == "t: dtype is torch.float64, not torch.float32"
    assert difference(x, torch.zeros(3)) == "t: shape is (3,), not (2,)"


def test_a_missing_tensor_is_named() -> None:
    both = Outcome({"a": torch.zeros(1), "b": torch.zeros(1)})
    one = Outcome({"a": torch.zeros(1)})
    assert first_difference(both, one) == "other tensors: missing ['b'], added []"


def test_an_empty_tensor_equals_an_empty_tensor() -> None:
    assert difference(torch.empty(0, 3), torch.empty(0, 3)) is None
