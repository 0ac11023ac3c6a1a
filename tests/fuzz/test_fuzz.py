"""A fixed slice of the random programs of `make fuzz`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .check import check
from .program import Program, random_program, random_trials, shrink

NUM_SEEDS = 60

pytestmark = pytest.mark.debug_build


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_a_random_program_is_the_same_bits_or_does_not_fit(seed: int) -> None:
    for trial in random_trials(seed):
        failure = check(trial).failure
        assert failure is None, f"{failure}: python -m tests.fuzz --seed {seed} shrinks it"


def test_shrinking_leaves_only_what_is_needed() -> None:
    import random

    program = random_program(random.Random(0), 100)

    def fails(candidate: Program) -> bool:
        kinds = [kind for kind, _ in candidate]
        return "view" in kinds and "inplace" in kinds

    assert fails(program)
    assert sorted(kind for kind, _ in shrink(program, fails)) == ["inplace", "view"]
