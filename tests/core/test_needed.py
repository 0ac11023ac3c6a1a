"""The smallest budget without an eviction, by hand: both sides, with the holes between blocks."""

from __future__ import annotations

import random

import pytest

from coop._native import _C
from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build
UNIT = 64
KIND = _C.entry_kinds()


def core_of(units: int) -> Driver:
    return Driver(units * UNIT)


def needed(core: Driver) -> int:
    return int(core.simulator.stats()["needed_bytes"]) // UNIT


def held_at_most(core: Driver) -> int:
    return int(core.simulator.stats()["peak_bytes"]) // UNIT


def test_it_is_what_both_sides_take_together() -> None:
    core = core_of(100)
    core.root(1, 2 * UNIT)
    core.op([], [(2, 3 * UNIT)], left=False)
    assert needed(core) == 5
    core.free(1)
    core.op([], [(3, UNIT)], left=False)
    assert needed(core) == 5


def test_a_hole_that_is_too_small_for_what_comes_counts() -> None:
    core = core_of(100)
    for storage in (1, 2, 3):
        core.root(storage, UNIT)
    core.free(2)
    core.root(4, 2 * UNIT)
    assert (held_at_most(core), needed(core)) == (4, 5)
    # What fits the hole does not.
    core.root(5, UNIT)
    assert (held_at_most(core), needed(core)) == (5, 5)


@pytest.mark.parametrize("units", [6, 7, 8, 9, 100])
def test_a_run_that_evicts_says_what_one_with_room_says(units: int) -> None:
    core = core_of(units)
    core.root(1, UNIT)
    core.op([1], [(2, 2 * UNIT)])
    core.op([2], [(3, 2 * UNIT)], left=False)
    core.op([3], [(4, 2 * UNIT)])
    core.op([4], [(5, UNIT)], left=False)
    core.free(4)
    # What is brought back is not asked for again.
    core.op([2, 3, 5], [(6, UNIT)])
    assert needed(core) == 8
    assert (core.simulator.stats()["num_evictions"] == 0) == (units >= 8)


def test_a_version_takes_the_place_of_the_one_before_and_leaves_it() -> None:
    core = core_of(4)
    core.root(1, UNIT)
    core.op([1], [(2, UNIT)])
    core.op([1], [(3, 2 * UNIT)])
    core.evict(3)
    core.op(writes=[2])
    core.op(writes=[3])
    assert needed(core) == 4
    core.free(2)
    core.free(3)
    core.op([1], [(4, 3 * UNIT)])
    assert needed(core) == 4


def test_a_private_copy_counts_for_as_long_as_something_reads_it() -> None:
    core = core_of(100)
    core.root(1, 2 * UNIT)
    core.op([1], [(2, 4 * UNIT)])
    core.evict(2)
    core.op(writes=[1])  # the old bytes are needed for 2
    assert needed(core) == 8
    core.free(2)
    core.op([1], [(3, 6 * UNIT)])
    assert needed(core) == 8


def test_what_did_not_fit_counts() -> None:
    core = core_of(4)
    core.root(1, 3 * UNIT)
    assert not core.root(2, 5 * UNIT)
    assert needed(core) == 8


def test_a_budget_that_was_enough_is_enough() -> None:
    """Small values take extents, and how large those are depends on the budget."""
    core = Driver(64 * 1024, small_bytes=256)
    for storage in range(40):
        core.root(storage, 256)
    stats = core.simulator.stats()
    assert stats["peak_bytes"] < stats["needed_bytes"] <= 64 * 1024


def random_trace(seed: int) -> _C.Trace:
    """Operators on small and large values, of which about half are freed again."""
    rng = random.Random(seed)
    trace, alive, count = _C.Trace(), list[int](), 0
    for _ in range(rng.randrange(20, 200)):
        if alive and rng.random() < 0.3:
            trace.add(KIND["free"], alive.pop(rng.randrange(len(alive))), 0, 0)
            continue
        inputs = rng.sample(alive, min(len(alive), rng.randrange(4)))
        outputs = [count := count + 1 for _ in range(rng.randrange(1, 3))]
        trace.add_operator(
            op=len(inputs), cost=float(rng.randrange(1, 1000)), left=rng.random() < 0.5,
            replayable=rng.random() < 0.9, inputs=inputs, outputs=outputs,
            output_bytes=[rng.randrange(12 * UNIT) for _ in outputs], writes=[], overwrites=[],
            memory=[], line=0, backward=rng.random() < 0.3,
        )  # fmt: skip
        alive += outputs
    return trace


@pytest.mark.parametrize("small_bytes", [0, 3 * UNIT])
def test_what_any_run_reports_is_a_budget_in_which_nothing_is_evicted(small_bytes: int) -> None:
    """With room, and after evictions; also where small values find no room for their area."""

    def stats_of(trace: _C.Trace, num_bytes: int) -> dict[str, float] | None:
        config = _C.Config(num_bytes, "coop", alignment=UNIT, small_bytes=small_bytes)
        result = _C.simulate(trace, config)
        return result["stats"] if result["fitted"] else None

    num_evicting = 0
    for seed in range(150):
        trace = random_trace(seed)
        ample = stats_of(trace, 2**30)
        assert ample is not None
        for share in (1.0, 0.9, 0.75, 0.5):
            ran = stats_of(trace, int(ample["peak_bytes"] * share) // UNIT * UNIT)
            if share == 1.0:
                ran = ample
            if ran is None:
                break
            num_evicting += ran["num_evictions"] > 0
            again = stats_of(trace, int(ran["needed_bytes"]))
            assert again is not None, seed
            assert again["num_evictions"] == 0, seed
    assert num_evicting > 100
