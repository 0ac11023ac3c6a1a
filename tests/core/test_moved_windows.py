"""A window moves what is expensive instead of evicting it (decision 0004, 8)."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build

CHEAP, EXPENSIVE, CHEAP_TOO, KEPT, LARGE = 1, 2, 3, 4, 5


def crowded(expensive_cost: int, policy: str = "coop") -> Driver:
    """Four values fill the budget: 512 bytes in one piece are there only with the expensive one."""
    core = Driver(1024, policy=policy)
    core.op([], [(CHEAP, 256)], cost=100)
    core.op([], [(EXPENSIVE, 256)], cost=expensive_cost)
    core.op([], [(CHEAP_TOO, 256)], cost=100)
    core.op([], [(KEPT, 256)], cost=100)
    core.keep(KEPT)
    assert [core.simulator.offset(storage) for storage in (1, 2, 3, 4)] == [0, 256, 512, 768]
    return core


def test_what_is_expensive_is_moved_out_of_the_way() -> None:
    core = crowded(expensive_cost=100_000)
    cookie = core.simulator.cookie(EXPENSIVE)
    assert core.op([], [(LARGE, 512)])
    assert core.simulator.is_resident(EXPENSIVE)
    assert core.simulator.offset(EXPENSIVE) == 0
    assert core.simulator.offset(LARGE) == 256
    assert core.simulator.cookie(EXPENSIVE) == cookie
    stats = core.simulator.stats()
    assert (stats["num_evictions"], stats["moved_bytes"]) == (2, 256)


def test_what_is_soon_made_again_is_evicted() -> None:
    # A launch and two passes over 256 bytes take 300 here.
    core = crowded(expensive_cost=300)
    assert core.op([], [(LARGE, 512)])
    stats = core.simulator.stats()
    assert (stats["num_evictions"], stats["moved_bytes"]) == (2, 0)
    assert not core.simulator.is_resident(EXPENSIVE)


@pytest.mark.parametrize("policy", ["coop-paper", "dtr", "dte"])
def test_the_published_policies_evict_it(policy: str) -> None:
    core = crowded(100_000, policy)
    assert core.op([], [(LARGE, 512)])
    assert not core.simulator.is_resident(EXPENSIVE)
    assert core.simulator.stats()["moved_bytes"] == 0
