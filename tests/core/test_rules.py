"""The rules of the value model, one small program each; most were bugs the model test found."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build
KIB = 1024


def test_an_operator_may_write_a_value_and_overwrite_the_root_it_came_from() -> None:
    # Settling 1 could make a root of 3, which the same operator writes in place.
    core = Driver(64 * KIB)
    core.root(1, 128)
    core.op([1], [(3, 65)])
    assert core.op(writes=[3], overwrites=[1])
    cookie = core.simulator.cookie(3)
    core.evict(3)
    assert core.materialize(3)
    assert core.simulator.cookie(3) == cookie


def test_a_replay_reads_the_old_bytes_of_a_root_that_was_written_beside_a_value() -> None:
    core = Driver(64 * KIB)
    core.root(1, 256)
    core.root(2, 256)
    core.op([1], [(3, 256)])
    core.op(writes=[2, 3])
    core.op(writes=[2])  # the old bytes of 2 are gone, but for the private copy
    cookie = core.simulator.cookie(3)
    core.evict(3)
    assert not core.simulator.is_resident(3)
    assert core.materialize(3)
    assert core.simulator.cookie(3) == cookie


def test_a_failed_copy_on_write_of_a_pinned_storage_leaves_it_pinned() -> None:
    core = Driver(4 * KIB, policy="dte")
    core.op([], [(1, 64)])
    core.op([1], [(2, 704)])
    core.keep(2)
    # 1 is evicted while 2 has lost its storage to the copy: its score must not stay evictable.
    assert not core.op([], [(3, 192)], overwrites=[2], temporaries=[1024, 2048, 2048])
    costs = {offset: cost for offset, _, cost, _, _ in core.simulator.blocks()}
    assert costs[core.simulator.offset(2)] is None


def test_what_lost_its_pinned_storage_to_a_copy_is_no_candidate_while_the_operator_runs() -> None:
    core = Driver(4 * KIB + 64, policy="dte")
    core.op([], [(1, 64)])
    core.op([1], [(2, KIB)])
    core.op([2], [(3, KIB)])
    core.evict(3)
    core.evict(2)
    core.keep(2)
    for storage in range(4, 9):
        core.op([], [(storage, KIB)])  # the last one needs a search, which leaves 2 alone
    core.free(7)
    core.free(8)
    # 2 comes back and is copied; for 9 there is no room. That 3 is evicted 2 was never told.
    assert core.op([], [(9, KIB)], writes=[2])


def test_a_written_value_knows_its_evicted_neighbours() -> None:
    core = Driver(64 * KIB)
    core.op([], [(1, 256)], cost=100)
    core.op([1], [(2, 256)], cost=20)
    core.op(writes=[1], cost=3)  # the old version of 1 has no bytes from now on
    assert core.simulator.neighbourhood(1, False) == 103
    core.evict(2)
    costs = {offset: cost for offset, _, cost, _, held in core.simulator.blocks() if held}
    assert costs[core.simulator.offset(1)] == core.simulator.neighbourhood(1, False) == 123


def test_a_small_value_that_lay_in_the_arena_comes_back_to_the_small_area() -> None:
    # The only extent holds three blocks of 64 bytes; there is no room for another extent.
    core = Driver(1024, small_bytes=192)
    for storage in (1, 2, 3):
        assert core.op([], [(storage, 64)])
    core.root(10, 768)
    assert core.op([], [(4, 64)])
    assert not core.simulator.is_root(4)
    core.evict(4)
    core.free(1)
    assert core.materialize(4)
    assert core.simulator.offset(4) < 192
    core.evict(4)
    assert not core.simulator.is_resident(4)
    assert core.materialize(4)


def test_a_small_value_written_in_place_leaves_no_record_without_outputs() -> None:
    core = Driver(64 * KIB, small_bytes=256)
    core.root(1, 64)
    core.op([1], [(2, 64)])
    core.op(writes=[2])
    assert core.simulator.stats()["num_recipes"] == 0


def test_what_does_not_fit_names_the_numbers_and_leaves_everything_usable() -> None:
    core = Driver(1024)
    core.root(1, 256)
    core.op([1], [(2, 128)])
    core.op([1], [(3, 64)])
    core.keep(3)
    cookie = core.simulator.cookie(2)
    before = core.simulator.stats()
    assert not core.op([2], [(4, 320), (5, 512)])
    assert core.simulator.stats() == {
        **before,
        **{key: core.simulator.stats()[key] for key in ("num_searches", "search_ns")},
        "peak_bytes": 768,
        "needed_bytes": 448 + 320 + 512,
        "needed_is_estimate": True,  # with room the program would have gone another way
        "num_retries": 1,  # with its allocations at the ends in turn
        "searched_blocks": core.simulator.stats()["searched_blocks"],
    }
    assert core.simulator.shortage(1024) == {
        "wanted_bytes": 1024,
        "budget_bytes": 1024,
        "held_bytes": 448,
        "largest_window_bytes": 576,
        "sufficient_budget_bytes": 1472,
        "root_bytes": 256,
        "kept_bytes": 64,
        "locked_bytes": 0,
        "temporary_bytes": 0,
        "refused_bytes": 0,
        "host_bytes": 0,
        "kept": [("the trace", 64)],
    }
    assert core.simulator.cookie(2) == cookie
    # The same again, smaller, in the budget that is left.
    assert core.op([2], [(4, 320)])
    assert core.simulator.stats()["held_bytes"] == 768


def test_records_do_not_grow_from_step_to_step() -> None:
    core = Driver(64 * KIB)
    core.root(0, 256)
    storages = iter(range(1, 1000))
    live = []
    for _ in range(20):
        for _ in range(4):
            live.append(next(storages))
            core.op([0], [(live[-1], 256)])
        core.begin_step()
        core.op(live, writes=[0])
        core.end_step()
        while len(live) > 4:
            core.free(live.pop(0))
        assert core.simulator.stats()["num_recipes"] <= 8
