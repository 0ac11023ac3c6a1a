"""Two ways back: recompute, or a copy in main memory. Which one is a matter of cost; roots too."""

import pytest

from coop._native import _C
from coop.trace import read_trace
from tests.core.decisions import TRACES
from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build
UNIT = 64
# One unit takes as many nanoseconds each way.
# What can be recomputed too leaves by a copy where that costs more than four times as much.
COPY = 4 * 2 * UNIT
LINK = _C.LinkProfile(out_bytes_per_second=1e9, in_bytes_per_second=1e9, latency_ns=0)


def core_with(units: int, host_units: int) -> Driver:
    return Driver(units * UNIT, host_bytes=host_units * UNIT, link=LINK)


def stats(core: Driver) -> "_C.Stats":
    return core.simulator.stats()


def test_without_a_pool_no_root_leaves() -> None:
    core = core_with(2, 0)
    assert core.root(1, UNIT)
    assert core.root(2, UNIT)
    assert not core.simulator.can_leave(1)
    assert not core.root(3, UNIT)


def test_a_root_leaves_by_a_copy_and_comes_back_with_its_bytes() -> None:
    core = core_with(2, 4)
    for root in (1, 2, 3):
        assert core.root(root, UNIT)
    cookie = core.simulator.cookie(3)
    assert not core.simulator.is_resident(1)
    assert core.simulator.is_root(1)
    assert core.op([1, 2], writes=[1])
    assert not core.simulator.is_resident(3)
    assert core.materialize(3)
    assert core.simulator.cookie(3) == cookie
    counted = stats(core)
    assert counted["num_replays"] == 0
    assert counted["host_loaded_bytes"] == counted["num_host_loads"] * UNIT
    # As the link is modelled: everything waits for its copy.
    moved = counted["host_saved_bytes"] + counted["host_loaded_bytes"]
    assert counted["host_wait_ns"] == moved


def test_what_did_not_change_leaves_again_without_a_copy() -> None:
    core = core_with(2, 4)
    assert core.root(1, UNIT)
    core.evict(1)
    assert stats(core)["num_host_saves"] == 1
    assert core.materialize(1)
    assert core.simulator.is_saved(1)
    core.evict(1)
    assert not core.simulator.is_resident(1)
    assert stats(core)["num_host_saves"] == 1


@pytest.mark.parametrize("writes", [True, False])
def test_what_was_written_is_copied_anew(writes: bool) -> None:
    core = core_with(3, 4)
    assert core.root(1, UNIT)
    core.evict(1)
    if writes:
        assert core.op(writes=[1])
    else:
        assert core.op(overwrites=[1])
    cookie = core.simulator.cookie(1)
    assert not core.simulator.is_saved(1)
    assert stats(core)["host_held_bytes"] == 0
    core.evict(1)
    assert stats(core)["num_host_saves"] == 2
    assert core.materialize(1)
    assert core.simulator.cookie(1) == cookie


def test_what_is_written_unseen_stays_from_then_on() -> None:
    core = core_with(3, 4)
    assert core.root(1, UNIT)
    core.evict(1)
    core.apply(_C.entry_kinds()["unseen_write"], 1)
    assert not core.simulator.is_saved(1)
    assert not core.simulator.can_leave(1)


def test_the_cheaper_way_back_is_taken() -> None:
    core = core_with(8, 8)
    assert core.root(1, UNIT)
    assert core.op([1], [(2, UNIT)], cost=COPY)
    assert core.op([1], [(3, UNIT)], cost=COPY + 1)
    cookies = [core.simulator.cookie(value) for value in (2, 3)]
    for value in (2, 3):
        core.evict(value)
        assert not core.simulator.is_resident(value)
    assert not core.simulator.is_saved(2)
    assert core.simulator.is_saved(3)
    assert core.materialize(2)
    assert core.materialize(3)
    assert stats(core)["num_replays"] == 1
    assert [core.simulator.cookie(value) for value in (2, 3)] == cookies


def test_a_closure_makes_the_copy_cheaper() -> None:
    core = core_with(8, 8)
    assert core.root(1, UNIT)
    assert core.op([1], [(2, UNIT)], cost=COPY // 2)
    assert core.op([2], [(3, UNIT)], cost=COPY // 2 + 1)
    core.evict(2)
    assert not core.simulator.is_saved(2)
    # Cheap by itself, but not with what it is made from.
    core.evict(3)
    assert core.simulator.is_saved(3)
    assert core.materialize(3)
    assert not core.simulator.is_resident(2)
    assert stats(core)["num_replays"] == 0


def test_blocks_cost_the_cheaper_way_back() -> None:
    core = core_with(8, 8)
    assert core.root(1, UNIT)
    assert core.op([1], [(2, UNIT)], cost=50, backward=False)
    assert core.op([1], [(3, UNIT)], cost=1000, backward=False)
    costs = {block[0]: block[2] for block in core.simulator.blocks() if block[4]}
    offset = core.simulator.offset
    assert costs == {offset(1): 2.0 * UNIT, offset(2): 50.0, offset(3): float(COPY)}
    core.evict(3)
    assert core.materialize(3)
    costs = {block[0]: block[2] for block in core.simulator.blocks() if block[4]}
    assert costs[offset(3)] == COPY / 2  # nothing has to be copied for it to leave again


def test_the_old_bytes_of_a_root_that_a_recipe_reads_leave_too() -> None:
    core = core_with(6, 8)
    assert core.root(1, 2 * UNIT)
    assert core.op([1], [(2, 3 * UNIT)], cost=10)
    cookie = core.simulator.cookie(2)
    assert core.op(writes=[1])  # with a private copy for the recipe
    core.evict(2)
    assert not core.simulator.is_saved(2)
    assert core.root(3, 4 * UNIT)  # the old bytes leave for it, as may the new ones
    assert core.free(3)
    assert core.materialize(2)
    assert core.simulator.cookie(2) == cookie
    assert stats(core)["num_replays"] == 1


def test_what_is_being_written_does_not_leave() -> None:
    """The bytes that a recipe reads go elsewhere, and what is written has a value of its own."""
    core = core_with(7, 16)
    assert core.root(1, 2 * UNIT)
    assert core.op([1], [(2, 3 * UNIT)], cost=COPY)
    old = core.simulator.cookie(2)
    assert not core.op(writes=[1], temporaries=[5 * UNIT])
    assert core.op(writes=[1], temporaries=[3 * UNIT])
    assert core.simulator.is_resident(1)
    cookie = core.simulator.cookie(1)
    core.evict(1)
    assert not core.simulator.is_resident(1)
    assert core.materialize(1)
    assert core.simulator.cookie(1) == cookie
    assert core.materialize(2)
    assert core.simulator.cookie(2) == old


def test_a_pool_that_is_full_lets_go_of_copies_of_what_is_resident() -> None:
    core = core_with(4, 2)
    for root in (1, 2, 3):
        assert core.root(root, UNIT)
    core.evict(1)
    core.evict(2)
    assert core.materialize(1)
    core.evict(3)
    assert not core.simulator.is_resident(3)
    assert not core.simulator.is_saved(1)
    assert stats(core)["host_peak_bytes"] == 2 * UNIT
    # Now both are of values that have nothing else.
    core.evict(1)
    assert core.simulator.is_resident(1)
    assert not core.simulator.can_leave(1)
    assert stats(core)["num_host_refusals"] == 1
    # Until one of those is gone.
    assert core.free(3)
    assert core.simulator.can_leave(1)


def test_a_copy_lies_wherever_there_is_room() -> None:
    core = core_with(8, 4)
    for root in (1, 2, 3, 4):
        assert core.root(root, UNIT)
        core.evict(root)
    assert core.free(1)
    assert core.free(3)
    assert core.root(5, 2 * UNIT)
    cookie = core.simulator.cookie(5)
    core.evict(5)
    assert stats(core)["host_held_bytes"] == 4 * UNIT
    assert core.materialize(5)
    assert core.simulator.cookie(5) == cookie


def test_what_does_not_fit_says_what_the_pool_had_no_room_for() -> None:
    core = core_with(3, 1)
    for root in (1, 2, 3):
        assert core.root(root, UNIT)
    assert core.root(4, UNIT)  # one has left
    assert not core.root(5, UNIT)
    shortage = core.simulator.shortage(UNIT)
    assert shortage["root_bytes"] == 3 * UNIT
    assert shortage["refused_bytes"] == 3 * UNIT
    assert shortage["host_bytes"] == UNIT


def test_a_copy_that_fails_leaves_everything_as_it_was() -> None:
    core = core_with(4, 4)
    assert core.root(1, UNIT)
    assert core.op([1], [(2, UNIT)], cost=1000)
    cookies = [core.simulator.cookie(value) for value in (1, 2)]
    core.simulator.fail_copy(1)
    core.evict(1)
    assert core.simulator.is_resident(1)
    assert core.simulator.is_valid()
    # There is no more main memory than there was, and the other has a recipe.
    core.evict(2)
    assert not core.simulator.is_resident(2)
    assert not core.simulator.is_saved(2)
    assert core.materialize(2)
    assert [core.simulator.cookie(value) for value in (1, 2)] == cookies


def test_a_copy_that_throws_leaves_everything_as_it_was() -> None:
    core = core_with(4, 4)
    for root in (1, 2):
        assert core.root(root, UNIT)
    cookies = [core.simulator.cookie(value) for value in (1, 2)]
    core.evict(1)
    assert stats(core)["host_held_bytes"] == UNIT
    # Out: it did not leave, and nothing is held for it.
    core.simulator.throw_in_copy(1)
    core.evict(2)
    assert core.simulator.is_resident(2)
    assert core.simulator.is_valid()
    assert stats(core)["host_held_bytes"] == UNIT
    # Back: it is as far away as it was, and its block is free again.
    held = stats(core)["held_bytes"]
    core.simulator.throw_in_copy(1)
    with pytest.raises(RuntimeError, match="a copy failed"):
        core.materialize(1)
    assert not core.simulator.is_resident(1)
    assert core.simulator.is_valid()
    assert stats(core)["held_bytes"] == held
    assert core.materialize(1)
    assert [core.simulator.cookie(value) for value in (1, 2)] == cookies


def test_an_optimizer_whose_state_does_not_fit_updates_one_after_the_other() -> None:
    """Eight parameters with gradients and state: 32 units in 8, and 40 in main memory."""
    core = core_with(8, 40)
    plain = core_with(64, 0)
    for run in (core, plain):
        for p in range(8):
            assert run.root(p, UNIT)
            assert run.op([p], [(100 + p, UNIT)], cost=10)  # zeros, which stay
            assert run.op([p], [(200 + p, UNIT)], cost=10)
        for _ in range(3):
            previous = 0
            for p in range(8):
                assert run.op([p, previous], [(300 + p, UNIT)], cost=100, backward=False)
                previous = 300 + p
            for p in reversed(range(8)):
                assert run.op([p, 300 + p], [(400 + p, UNIT)], cost=100)
                assert run.make_root(400 + p)
            assert run.begin_step()
            for p in range(8):
                assert run.op([400 + p], writes=[100 + p], updates=True)
                assert run.op([400 + p], writes=[200 + p], updates=True)
                assert run.op([100 + p, 200 + p], writes=[p], updates=True)
            assert run.end_step()
            for p in range(8):
                assert run.free(300 + p)
                assert run.free(400 + p)
    for value in (*range(8), *range(100, 108), *range(200, 208)):
        core.materialize(value)
        assert core.simulator.cookie(value) == plain.simulator.cookie(value)
    assert stats(core)["peak_bytes"] <= 8 * UNIT
    assert stats(core)["host_peak_bytes"] <= 40 * UNIT
    assert stats(core)["num_host_saves"] > 0


@pytest.mark.parametrize("name", ["residual", "ushape", "rnn"])
def test_traces_run_in_budgets_below_their_roots(name: str) -> None:
    """A replay that reads other content, or a copy of another, is an error of the simulator."""
    trace = read_trace(TRACES / f"{name}.jsonl.gz")
    peak = _C.simulate(trace.native, _C.Config(2**50, small_bytes=0))["stats"]["peak_bytes"]
    for ratio in (0.4, 0.3, 0.25):
        config = _C.Config(int(peak * ratio), small_bytes=0, host_bytes=peak)
        result = _C.simulate(trace.native, config)
        counted = result["stats"]
        assert result["fitted"]
        assert counted["num_host_saves"] > 0
        assert counted["host_peak_bytes"] <= peak


def test_a_step_that_makes_nothing_has_a_schedule_for_its_roots() -> None:
    core = core_with(3, 8)
    for root in (1, 2, 3, 4):
        assert core.root(root, UNIT)
    for _ in range(6):
        for root in (1, 2, 3, 4):
            assert core.op([root])
        assert core.begin_step()
        assert core.end_step()
    counted = stats(core)
    assert counted["num_evictions"] > 0
    assert counted["num_replays"] == 0
    assert counted["num_schedules"] == 1
    assert counted["num_followed"] == 4
