"""PyTorch's corners give the same bits inside a budget, down to the smallest that fits."""

from __future__ import annotations

import pytest

from .conftest import SmallestBudgets
from .corners import CORNERS
from .harness import reference, rounded, smallest_budget, try_budget
from .slices import covering_pairs

TOLERANCE = 0.3  # the search costs a run a halving


# The debug build checks every invariant after every operation: one policy of three is enough.
@pytest.mark.parametrize(
    ("name", "policy"),
    covering_pairs(CORNERS, ("coop", "dtr", "dte"), every=4, debug="coop", debug_every=8),
)
def test_a_corner_is_the_same_bits_from_its_peak_down_to_the_smallest_budget_it_fits(
    name: str, policy: str, smallest_budgets: SmallestBudgets
) -> None:
    corner = CORNERS[name]
    expected = reference(corner)
    # A tenth more than it holds: the blocks of these tiny programs do not tile the arena.
    full = try_budget(corner, rounded(1.1 * expected.peak_bytes), policy)
    assert full is not None, "does not fit the bytes it holds when nothing is ever evicted"
    full.check(expected)
    smallest = smallest_budget(corner, policy, fitting=full, tolerance=TOLERANCE)
    smallest_budgets.note(name, policy, smallest.budget_bytes, expected.peak_bytes)
    smallest.check(expected)
    # Recomputing one of a hundred versions of four tensors that were written from each other takes
    # more memory than there is.
    if policy == "coop" and name != "random_writes_and_reads":
        assert smallest.budget_bytes < full.budget_bytes
