"""Training inside a budget gives the same bits as training without one.

Every program runs under every policy at its peak, at 60% of it, and at the smallest budget that a
bisection finds; a table of these is printed after the tests. Of the first and the last, `make test`
takes one policy a program, and of the programs every second and every tenth.
"""

from __future__ import annotations

import functools

import pytest
import torch

from .conftest import SmallestBudgets
from .harness import (
    POLICIES,
    Fit,
    assert_identical,
    reference,
    rounded,
    run_budgeted,
    run_plain,
    smallest_budget,
    try_budget,
)
from .programs import PROGRAMS
from .slices import covering_pairs, first

# The search costs a run a halving: fine for coop, coarse for the two baselines.
TOLERANCE = {"coop": 0.1, "dtr": 0.3, "dte": 0.3}

every_policy = pytest.mark.parametrize("policy", POLICIES)
every_pair = pytest.mark.parametrize(
    ("name", "policy"), covering_pairs(PROGRAMS, POLICIES, every=2)
)


@functools.cache
def fit_at_peak(name: str, policy: str) -> Fit:
    program = PROGRAMS[name]
    fit = try_budget(program, rounded(reference(program).peak_bytes), policy)
    assert fit is not None, "does not fit the bytes it holds when nothing is ever evicted"
    return fit


@functools.cache
def fit_at_60_percent(name: str, policy: str) -> Fit:
    """Or at the smallest budget above it, where 60% is less than what single operators need."""
    program = PROGRAMS[name]
    budget_bytes = rounded(0.6 * reference(program).peak_bytes)
    fit = try_budget(program, budget_bytes, policy)
    if fit is None:
        return smallest_budget(
            program,
            policy,
            fitting=fit_at_peak(name, policy),
            failing_bytes=budget_bytes,
            tolerance=TOLERANCE[policy],
        )
    return fit


@every_pair
def test_a_program_is_the_same_bits_at_its_peak(name: str, policy: str) -> None:
    fit_at_peak(name, policy).check(reference(PROGRAMS[name]))


@pytest.mark.parametrize(
    ("name", "policy"),
    [*((name, "coop") for name in PROGRAMS), *covering_pairs(PROGRAMS, ("dtr", "dte"), every=5)],
)
def test_a_program_is_the_same_bits_at_60_percent_of_its_peak(name: str, policy: str) -> None:
    fit = fit_at_60_percent(name, policy)
    fit.check(reference(PROGRAMS[name]))


@pytest.mark.parametrize(("name", "policy"), covering_pairs(PROGRAMS, POLICIES, every=10))
def test_a_program_is_the_same_bits_at_the_smallest_budget_it_fits(
    name: str, policy: str, smallest_budgets: SmallestBudgets
) -> None:
    program = PROGRAMS[name]
    fitting = fit_at_60_percent(name, policy)
    sixty_percent = rounded(0.6 * reference(program).peak_bytes)
    smallest = smallest_budget(
        program,
        policy,
        fitting=fitting,
        failing_bytes=sixty_percent if fitting.budget_bytes > sixty_percent else 0,
        tolerance=TOLERANCE[policy],
    )
    smallest_budgets.note(name, policy, smallest.budget_bytes, reference(program).peak_bytes)
    smallest.check(reference(program))


# One of them: threads of kernels wait for each other by spinning, which takes a busy machine long.
@pytest.mark.parametrize(
    "name",
    first(1, ["cnn_with_batch_norm_and_inplace_relu", "mlp", "transformer_with_dropout_and_sdpa"]),
)
def test_a_program_is_the_same_bits_where_kernels_use_two_threads(name: str) -> None:
    torch.set_num_threads(2)
    program = PROGRAMS[name]
    expected = run_plain(program)
    actual, stats = run_budgeted(program, rounded(0.6 * reference(program).peak_bytes))
    assert_identical(expected, actual)
    assert stats.num_evictions > 0


@pytest.mark.parametrize("name", ["random_path_supernet", "tree_lstm_over_random_trees"])
def test_a_program_of_another_shape_for_every_seed_is_the_same_bits(name: str) -> None:
    program = PROGRAMS[name]
    for seed in (1, 2, 3):
        expected = run_plain(program, seed=seed)
        _, ample = run_budgeted(program, 2**30, seed=seed)
        # At 60% a single path may need more than there is.
        actual, stats = run_budgeted(program, rounded(0.75 * ample.peak_bytes), seed=seed)
        assert_identical(expected, actual)
        assert stats.num_evictions > 0


@every_policy
def test_two_runs_inside_the_same_budget_decide_the_same(policy: str) -> None:
    program = PROGRAMS["transformer_with_dropout_and_sdpa"]
    budget_bytes = fit_at_60_percent("transformer_with_dropout_and_sdpa", policy).budget_bytes
    first, second = (run_budgeted(program, budget_bytes, policy)[1] for _ in range(2))
    for count in ("num_operators", "num_evictions", "evicted_bytes", "num_replays", "peak_bytes"):
        assert getattr(first, count) == getattr(second, count), count
