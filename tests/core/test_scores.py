"""What the score of a value counts of what is evicted beside it (decision 0004, 7)."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build

SOURCE, DEAD, LIVE = 1, 100, 200


def program(num_dead: int = 1, *, dead_cost: int = 1000, policy: str = "coop") -> Driver:
    """SOURCE is read by operators whose results are dead, and from each of those LIVE was made."""
    core = Driver(64 * 1024, policy=policy)
    core.op([], [(SOURCE, 256)], cost=100)
    for i in range(num_dead):
        core.op([SOURCE], [(DEAD + i, 256)], cost=dead_cost)
        core.op([DEAD + i], [(LIVE + i, 256)], cost=10)
        core.free(DEAD + i)
    return core


def score(core: Driver, storage: int) -> float:
    cost: float = core.simulator.neighbourhood(storage, False)
    assert core.simulator.neighbourhood(storage, True) == cost
    return cost


def test_what_is_dead_does_not_count_while_all_that_was_made_from_it_stays() -> None:
    core = program()
    assert score(core, SOURCE) == 100
    assert score(core, LIVE) == 10 + 1000  # it is recomputed from what is dead


def test_what_is_dead_counts_from_when_something_made_from_it_is_evicted() -> None:
    core = program()
    core.evict(LIVE)
    assert score(core, SOURCE) == 100 + 1000 + 10
    core.materialize(LIVE)
    assert score(core, SOURCE) == 100


def test_a_whole_chain_of_dead_values_wakes() -> None:
    core = Driver(64 * 1024)
    core.op([], [(1, 256)], cost=100)
    for storage in range(2, 6):
        core.op([storage - 1], [(storage, 256)], cost=1000)
    for storage in range(2, 5):
        core.free(storage)
    assert score(core, 1) == 100
    core.evict(5)
    assert score(core, 1) == 100 + 4 * 1000


def test_what_is_not_dearer_to_the_byte_counts() -> None:
    assert score(program(dead_cost=200), SOURCE) == 100 + 200
    assert score(program(dead_cost=201), SOURCE) == 100


@pytest.mark.parametrize(("num_dead", "counted"), [(8, 0), (9, 9)])
def test_many_dead_values_count(num_dead: int, counted: int) -> None:
    core = program(num_dead)
    assert score(core, SOURCE) == 100 + counted * 1000
    # Of nine that count one is wanted for itself, and eight are left.
    core.evict(LIVE)
    assert score(core, SOURCE) == 100 + 1000 + 10


@pytest.mark.parametrize("policy", ["coop-paper", "dtr", "dte"])
def test_the_published_policies_count_what_is_dead(policy: str) -> None:
    assert score(program(policy=policy), SOURCE) == 100 + 1000
