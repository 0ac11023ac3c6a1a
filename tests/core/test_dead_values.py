"""A dead value is worth its bytes while something that was evicted is made from it (Rule 4)."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build
# 2, 4 and 6 are made from the sums 1, 3 and 5, each of which is made from the one before.
SUMS, SAVED = (1, 3, 5), (2, 4, 6)


def stream(policy: str = "coop", without: tuple[str, ...] = ()) -> Driver:
    """The sums are dead, and what was made from them is evicted."""
    core = Driver(4096, policy=policy, without=list(without))
    below: list[int] = []
    for number, saved in zip(SUMS, SAVED, strict=True):
        core.op(below, [(number, 256)], cost=100)
        core.op([number], [(saved, 256)], cost=10)
        if below:
            core.free(below[0])
        below = [number]
    core.free(SUMS[-1])
    for saved in SAVED:
        core.evict(saved)
    return core


def held_bytes(core: Driver) -> int:
    return int(core.simulator.stats()["held_bytes"])


def num_replays(core: Driver) -> int:
    return int(core.simulator.stats()["num_replays"])


@pytest.mark.parametrize(
    ("policy", "without", "replays"),
    [("coop", (), 6), ("coop", ("keep_needed",), 9), ("coop-paper", (), 9), ("dtr", (), 9)],
)
def test_what_a_replay_makes_on_its_way_is_made_once(
    policy: str, without: tuple[str, ...], replays: int
) -> None:
    core = stream(policy, without)
    for saved in reversed(SAVED):
        assert core.materialize(saved)
    assert num_replays(core) == replays  # else the first sum is made three times, the second twice
    assert held_bytes(core) == 3 * 256


def test_it_stays_no_longer_than_something_evicted_is_made_from_it() -> None:
    core = stream()
    core.materialize(6)
    assert held_bytes(core) == 3 * 256  # 6, and 1 and 3 for 2 and 4
    core.materialize(4)
    assert held_bytes(core) == 3 * 256  # 6 and 4, and 1 for 2
    core.materialize(2)
    assert held_bytes(core) == 3 * 256
    assert num_replays(core) == 6


def test_what_dies_stays_if_something_that_was_made_from_it_is_evicted() -> None:
    core = Driver(4096)
    core.op([], [(1, 256)], cost=100)
    core.op([1], [(2, 256)], cost=10)
    core.evict(2)
    core.free(1)
    assert held_bytes(core) == 256
    assert core.materialize(2)
    assert (held_bytes(core), num_replays(core)) == (256, 1)


def test_what_nothing_evicted_is_made_from_goes_at_once() -> None:
    core = Driver(4096)
    core.op([], [(3, 256)])
    core.evict(3)
    core.op([], [(1, 256)])
    core.op([1], [(2, 256)])
    core.free(1)
    assert held_bytes(core) == 256


def test_it_is_evicted_as_everything_else() -> None:
    core = stream()
    core.materialize(6)
    assert core.op([], [(7, 4096)])
    core.free(7)
    for saved in SAVED:
        assert core.materialize(saved)


def test_nothing_that_is_dead_stays_when_the_step_is_over() -> None:
    core = stream()
    core.materialize(6)
    assert held_bytes(core) == 3 * 256
    core.begin_step()
    core.end_step()
    assert held_bytes(core) == 256
