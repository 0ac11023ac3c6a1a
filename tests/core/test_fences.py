"""A block that a device may still use is neither free nor held by anyone: it waits for a fence."""

import pytest

from coop._native import _C
from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build
UNIT = 64


def core_with(units: int) -> tuple[Driver, _C.TestFence]:
    """A storage of two units, in a budget of so many, that died while a device uses it."""
    core = Driver(units * UNIT)
    core.root(1, 2 * UNIT)
    fence = _C.TestFence()
    core.simulator.free_after(1, fence)
    return core, fence


def held_bytes(core: Driver) -> int:
    return int(core.simulator.stats()["held_bytes"])


def test_a_block_that_waits_for_a_fence_is_held_until_that_is_passed() -> None:
    core, fence = core_with(5)
    core.root(2, UNIT)
    assert core.simulator.offset(2) == 2 * UNIT
    assert held_bytes(core) == 3 * UNIT
    fence.pass_()
    core.root(3, 2 * UNIT)
    assert core.simulator.offset(3) == 0
    assert held_bytes(core) == 3 * UNIT
    assert fence.num_waits == 0
    assert core.simulator.is_valid()


def test_what_does_not_fit_otherwise_waits_for_the_fence() -> None:
    core, fence = core_with(3)
    assert core.root(2, 2 * UNIT)
    assert core.simulator.offset(2) == 0
    assert fence.num_waits == 1


def test_nothing_waits_where_something_can_be_evicted() -> None:
    core, fence = core_with(5)
    core.root(2, UNIT)
    core.op([2], [(3, 2 * UNIT)])
    core.op([2], [(4, UNIT)])
    assert not core.simulator.is_resident(3)
    assert fence.num_waits == 0


@pytest.mark.parametrize(
    ("without", "num_held", "num_replays"), [("keep_needed", 2, 2), ("", 3, 1)]
)
def test_what_others_are_made_from_comes_back_or_is_still_there_after_its_fence(
    without: str, num_held: int, num_replays: int
) -> None:
    core = Driver(6 * UNIT, without=[without] if without else [])
    core.root(1, UNIT)
    core.op([1], [(2, UNIT)])
    core.op([2], [(3, UNIT)])
    cookie = core.simulator.cookie(3)
    fence = _C.TestFence()
    core.simulator.free_after(2, fence)
    core.evict(3)
    fence.pass_()
    core.root(4, UNIT)
    assert held_bytes(core) == num_held * UNIT
    core.materialize(3)
    assert core.simulator.cookie(3) == cookie
    assert core.simulator.stats()["num_replays"] == num_replays
