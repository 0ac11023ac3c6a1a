"""Two processes that talk over gloo compute in a budget, bit for bit, what they do without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .distributed import COLLECTIVES, TRAININGS, Ranks, start
from .distributed_parallel import SLOW
from .slices import debug_every

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    yield from start(tmp_path_factory.mktemp("distributed"))


def _check(ranks: Ranks, name: str) -> None:
    for found in ranks.run(name):
        assert isinstance(found, dict), found
        assert all(found.values()), found


@pytest.mark.parametrize("name", debug_every(8, COLLECTIVES))
def test_a_collective_leaves_the_same_bits_where_everything_is_evicted(
    ranks: Ranks, name: str
) -> None:
    _check(ranks, name)


@pytest.mark.parametrize("seed", debug_every(5, range(10), every=5))
def test_a_random_program_leaves_the_same_bits(ranks: Ranks, seed: int) -> None:
    _check(ranks, f"random {seed}")


@pytest.mark.parametrize("name", debug_every(12, (n for n in TRAININGS if n not in SLOW), every=2))
def test_training_leaves_the_same_bits_in_budgets_that_evict(ranks: Ranks, name: str) -> None:
    if name == "ddp, low rank" and torch.cuda.is_available():
        pytest.skip(
            "torch's PowerSGD synchronizes the GPU of its tensors, which the CPU's do not have"
        )
    _check(ranks, name)
