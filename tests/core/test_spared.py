"""A window moves what is dear instead of evicting it (decision 0004, 8)."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build

CHEAP, DEAR, CHEAP_TOO, PINNED, LARGE = 1, 2, 3, 4, 5


def crowded(dear_cost: int, policy: str = "coop") -> Driver:
    """Four values fill the budget: 512 bytes in one piece are there only with the dear one."""
    core = Driver(1024, policy=policy)
    core.op([], [(CHEAP, 256)], cost=100)
    core.op([], [(DEAR, 256)], cost=dear_cost)
    core.op([], [(CHEAP_TOO, 256)], cost=100)
    core.op([], [(PINNED, 256)], cost=100)
    core.pin(PINNED)
    assert [core.simulator.offset(storage) for storage in (1, 2, 3, 4)] == [0, 256, 512, 768]
    return core


def test_what_is_dear_is_moved_out_of_the_way() -> None:
    core = crowded(dear_cost=100_000)
    cookie = core.simulator.cookie(DEAR)
    assert core.op([], [(LARGE, 512)])
    assert core.simulator.is_resident(DEAR)
    assert core.simulator.offset(DEAR) == 0
    assert core.simulator.offset(LARGE) == 256
    assert core.simulator.cookie(DEAR) == cookie
    stats = core.simulator.stats()
    assert (stats["num_evictions"], stats["moved_bytes"]) == (2, 256)


def test_what_is_soon_made_again_is_evicted() -> None:
    # A launch and two passes over 256 bytes take 300 here.
    core = crowded(dear_cost=300)
    assert core.op([], [(LARGE, 512)])
    stats = core.simulator.stats()
    assert (stats["num_evictions"], stats["moved_bytes"]) == (2, 0)
    assert not core.simulator.is_resident(DEAR)


@pytest.mark.parametrize("policy", ["coop-paper", "dtr", "dte"])
def test_the_published_policies_evict_it(policy: str) -> None:
    core = crowded(100_000, policy)
    assert core.op([], [(LARGE, 512)])
    assert not core.simulator.is_resident(DEAR)
    assert core.simulator.stats()["moved_bytes"] == 0
