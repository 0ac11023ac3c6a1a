"""Runs a program plain and inside a budget, and finds the smallest budget it fits."""

from __future__ import annotations

import functools
import gc
import math
from dataclasses import dataclass

import coop

from .identity import assert_identical, first_difference
from .outcome import Outcome, Program

__all__ = [
    "POLICIES",
    "Fit",
    "Reference",
    "assert_identical",
    "first_difference",
    "peak_bytes",
    "reference",
    "rounded",
    "run_budgeted",
    "run_plain",
    "smallest_budget",
    "try_budget",
]

POLICIES = ("coop", "dtr", "dte")
GRAIN_BYTES = 4096  # budgets are searched in whole pages
AMPLE_BYTES = 2**30  # never a reason to evict anything in these programs


def run_plain(program: Program, *, seed: int = 0) -> Outcome:
    """The program without coop."""
    return program(seed).cloned()


def run_budgeted(
    program: Program, budget_bytes: int, policy: str = "coop", *, seed: int = 0
) -> tuple[Outcome, coop.Stats]:
    """The same inside a budget. What it left is copied only after leaving: it must be intact."""
    with coop.budget(budget_bytes, device="cpu", policy=policy) as session:
        outcome = program(seed)
    return outcome.cloned(), session.stats()


def peak_bytes(program: Program, *, seed: int = 0) -> int:
    """The most bytes held at once where there is room for everything."""
    _, stats = run_budgeted(program, AMPLE_BYTES, seed=seed)
    assert stats.num_evictions == 0
    assert stats.num_replays == 0
    return stats.peak_bytes


@dataclass(frozen=True)
class Reference:
    """What a program does without a budget, and how much it would hold."""

    outcome: Outcome
    peak_bytes: int


@functools.cache
def reference(program: Program) -> Reference:
    """Also checks that plain runs repeat: nothing could be concluded from a program that varies."""
    outcome = run_plain(program)
    assert_identical(outcome, run_plain(program))
    return Reference(outcome, peak_bytes(program))


@dataclass(frozen=True)
class Fit:
    """A budget that the program fits, and what came of it."""

    budget_bytes: int
    outcome: Outcome
    stats: coop.Stats

    def check(self, reference: Reference) -> None:
        """The promise: the same bits, inside the budget, and by evicting where it had to."""
        assert_identical(reference.outcome, self.outcome)
        assert self.stats.budget_bytes == self.budget_bytes
        assert self.stats.peak_bytes <= self.budget_bytes
        if self.budget_bytes < reference.peak_bytes:
            assert self.stats.num_evictions > 0
            assert self.stats.evicted_bytes > 0


def try_budget(
    program: Program, budget_bytes: int, policy: str = "coop", *, seed: int = 0
) -> Fit | None:
    """None where the program does not fit.

    The error is caught inside the budget, so that its traceback lets go of the half-done step
    before everything that is still alive has to be given back.
    """
    outcome: Outcome | None = None
    with coop.budget(budget_bytes, device="cpu", policy=policy) as session:
        try:
            outcome = program(seed)
        except coop.OutOfBudgetError:
            outcome = None
        except RuntimeError as error:
            # Forward-mode differentiation runs in TorchScript, which keeps only an error's text.
            if "coop:" not in str(error) or "TorchScript" not in str(error):
                raise
            outcome = None
        gc.collect()
    if outcome is None:
        return None
    return Fit(budget_bytes, outcome.cloned(), session.stats())


def smallest_budget(
    program: Program,
    policy: str = "coop",
    *,
    fitting: Fit,
    failing_bytes: int = 0,
    tolerance: float = 0.05,
    seed: int = 0,
) -> Fit:
    """Bisects between a budget that fits and one that does not, down to a relative tolerance.

    Whether a program fits is not strictly monotonic in the budget: the result is a budget that fits
    and has, within the tolerance, one below it that does not.
    """
    best, low = fitting, failing_bytes
    while best.budget_bytes - low > max(GRAIN_BYTES, tolerance * best.budget_bytes):
        middle = rounded((best.budget_bytes + low) / 2)
        if middle == best.budget_bytes:
            break
        fit = try_budget(program, middle, policy, seed=seed)
        if fit is None:
            low = middle
        else:
            best = fit
    return best


def rounded(size_bytes: float) -> int:
    """The next whole number of grains."""
    return math.ceil(size_bytes / GRAIN_BYTES) * GRAIN_BYTES
