"""Random programs of compiled pieces leave the same bits in budgets that evict."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch._inductor.exc import InductorError

import coop
from tests.adapter.harness import AMPLE_BYTES, assert_identical, rounded, run_budgeted, try_budget

from .random_programs import PIECES, Piece, compiled, noise, program, writes

SHARES = (0.8, 0.6)


@pytest.fixture(autouse=True, scope="module")
def compiled_once() -> Iterator[None]:
    threads, limit = torch.get_num_threads(), torch._dynamo.config.recompile_limit
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # with and without gradients, in budgets and not
    with coop.budget("1 MiB", device="cpu"):
        pass  # what is compiled from now on is seen
    torch._dynamo.reset()
    yield
    compiled.cache_clear()
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = limit
    torch.set_num_threads(threads)


def check(seed: int, backend: str, *pieces: Piece) -> int:
    """Returns how much was replayed."""
    run = functools.partial(program, seed, backend, pieces or PIECES)
    try:
        plain = run().cloned()
    except InductorError as error:
        pytest.skip(f"inductor cannot compile it, without a budget either: {error}")
    assert_identical(plain, run().cloned())
    outcome, ample = run_budgeted(lambda _: run(), AMPLE_BYTES)
    assert_identical(plain, outcome)
    with coop.budget(AMPLE_BYTES, device="cpu", paranoid=True) as session:
        outcome = run()
    assert_identical(plain, outcome.cloned())
    num_replays = session.stats().num_replays
    for share in SHARES:
        fit = try_budget(lambda _: run(), rounded(share * ample.peak_bytes))
        if fit is None:
            break
        assert_identical(plain, fit.outcome)
        assert fit.stats.peak_bytes <= fit.budget_bytes
        num_replays += fit.stats.num_replays
    return num_replays


def test_a_random_program_of_pieces() -> None:
    assert check(1, "aot_eager", noise, writes) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_more_random_programs(seed: int) -> None:
    assert check(seed, "aot_eager") > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_random_programs_by_inductor(seed: int) -> None:
    assert check(seed, "inductor") > 0
