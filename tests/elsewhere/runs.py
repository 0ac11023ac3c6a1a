"""Runs a program plain, with room for everything, and in two budgets that make it evict."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.adapter.harness import Fit, reference, rounded, smallest_budget, try_budget
from tests.adapter.outcome import Program

TOLERANCES = (0.2, 0.04, 0.008)  # a run each halving; as coarse as makes it evict below its peak


@dataclass(frozen=True)
class Row:
    """A line of the table in docs/elsewhere.md."""

    program: str
    budget: str
    budget_bytes: int
    peak_bytes: int
    num_evictions: int
    num_replays: int


ROWS = pytest.StashKey[list[Row]]()
OTHERS = pytest.StashKey[dict[str, str]]()  # "failed" or "skipped", by program


def check(name: str, program: Program) -> list[Row]:
    """The same bits twice without a budget, in the smallest that it fits, and in one between."""
    expected = reference(program)
    ample = try_budget(program, rounded(1.25 * expected.peak_bytes))
    assert ample is not None, "does not fit a quarter more than it holds"
    tight, failing_bytes = ample, 0
    for tolerance in TOLERANCES:
        tight = smallest_budget(
            program, fitting=tight, failing_bytes=failing_bytes, tolerance=tolerance
        )
        if tight.stats.num_evictions and tight.budget_bytes < expected.peak_bytes:
            break
        failing_bytes = int(tight.budget_bytes * (1 - tolerance))
    tight.check(expected)
    moderate = _between(program, tight, expected.peak_bytes)
    moderate.check(expected)
    assert tight.stats.num_evictions > 0
    return [
        Row(
            name,
            budget,
            fit.budget_bytes,
            expected.peak_bytes,
            fit.stats.num_evictions,
            fit.stats.num_replays,
        )
        for budget, fit in (("moderate", moderate), ("tight", tight))
    ]


def _between(program: Program, tight: Fit, peak_bytes: int) -> Fit:
    """Halfway to the peak, or as little above that as fits: a budget may fail where a smaller one
    does not, because placement differs."""
    for share in (0.5, 0.7, 0.8, 0.9, 0.95):
        budget_bytes = rounded((1 - share) * tight.budget_bytes + share * peak_bytes)
        fit = try_budget(program, budget_bytes)
        if fit is not None and fit.stats.num_evictions:
            return fit
    raise AssertionError(f"fits {tight.budget_bytes} bytes, and nothing up to {peak_bytes}")
