"""Two processes that talk over gloo compute in a budget, bit for bit, what they do without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .distributed import Pair
from .distributed import pair as start
from .distributed_programs import COLLECTIVES, TRAININGS

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from start(tmp_path_factory.mktemp("distributed"))


def _check(pair: Pair, name: str) -> None:
    for found in pair.run(name):
        assert isinstance(found, dict), found
        assert all(found.values()), found


@pytest.mark.debug_build
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_leaves_the_same_bits_where_everything_is_evicted(
    pair: Pair, name: str
) -> None:
    _check(pair, name)


@pytest.mark.debug_build
@pytest.mark.parametrize("name", TRAININGS)
def test_training_leaves_the_same_bits_in_budgets_that_evict(pair: Pair, name: str) -> None:
    if name == "ddp, low rank" and torch.cuda.is_available():
        pytest.skip(
            "torch's PowerSGD synchronizes the GPU of its tensors, which the CPU's do not have"
        )
    _check(pair, name)
