"""A model compiled as a whole whose saved tensors cannot fit: less is saved, and that is said."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch import nn

import coop
from tests.adapter.harness import AMPLE_BYTES, assert_identical, run_budgeted, run_plain
from tests.adapter.outcome import Outcome

from .compiled_programs import Block, train

ROWS = 2048
MIB = 2**20


def whole(seed: int, backend: str, dropout: float, depth: int = 4) -> Outcome:
    torch._dynamo.reset()
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block(dropout=dropout) for _ in range(depth)))
    forward = torch.compile(model, backend=backend)
    return train(model, forward, rows=lambda step: ROWS)


def check(backend: str, dropout: float, shares: dict[int, str]) -> None:
    run = functools.partial(whole, backend=backend, dropout=dropout)
    plain = run_plain(run)
    with warnings.catch_warnings():
        # Nothing is changed where it fits.
        warnings.filterwarnings("error", "coop: a compiled graph")
        outcome, ample = run_budgeted(run, AMPLE_BYTES)
    assert_identical(plain, outcome)
    # Four blocks save 21 MiB.
    for budget_bytes, share in shares.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            outcome, stats = run_budgeted(run, budget_bytes)
        (line,) = [str(w.message) for w in said if "coop" in str(w.message)]
        assert f"activation_memory_budget={share}," in line
        assert stats.peak_bytes <= budget_bytes < ample.peak_bytes
        # In float32 on a CPU; not said of every graph.
        assert_identical(plain, outcome)


def test_less_is_saved_where_it_cannot_fit() -> None:
    check("aot_eager", 0.0, {20 * MIB: "0.5", 16 * MIB: "0.25"})


@pytest.mark.slow
def test_random_numbers_are_not_drawn_again() -> None:
    """The partitioner itself would, at 0.25: the gradients would be those of another dropout."""
    check("aot_eager", 0.1, {20 * MIB: "0.5"})
    run = functools.partial(whole, backend="aot_eager", dropout=0.1)
    with (
        pytest.warns(UserWarning, match="compiled with activation_memory_budget=0.5,"),
        pytest.raises(coop.OutOfBudgetError),
    ):
        run_budgeted(run, 16 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_less_is_saved_by_inductor_where_it_cannot_fit(dropout: float) -> None:
    check("inductor", dropout, {20 * MIB: "0.75"})
