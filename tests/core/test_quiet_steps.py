"""Quiet steps: nothing is recorded, and what has to be evicted all the same is saved."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build
KIB = 1024


def quiet_core(budget: int, **options: object) -> Driver:
    core = Driver(budget, quiet_after=1, **options)
    core.end_step()
    return core


def disturbed_core() -> Driver:
    """Made in the quiet part of a step: 1, which is saved, and 2, which is not yet."""
    core = quiet_core(4 * KIB)
    core.op([], [(2, KIB)])
    core.op([], [(1, KIB)])
    core.op([], [(3, 3 * KIB)])
    assert not core.simulator.is_resident(1)
    assert core.simulator.is_resident(2)
    assert not core.simulator.is_root(2)
    core.free(3)
    return core


def assert_comes_back(core: Driver, *storages: int) -> None:
    cookies = [core.simulator.cookie(storage) for storage in storages]
    for storage in storages:
        core.evict(storage)
        assert not core.simulator.is_resident(storage)
    for storage, cookie in zip(storages, cookies, strict=True):
        assert core.materialize(storage)
        assert core.simulator.cookie(storage) == cookie


def test_steps_without_a_search_make_it_quiet() -> None:
    core = Driver(8 * KIB, quiet_after=2)
    for num_recipes in (1, 1, 0, 0):
        core.op([], [(1, KIB)])
        assert core.simulator.stats()["num_recipes"] == num_recipes
        core.free(1)
        core.end_step()


def test_a_search_ends_it_and_it_takes_twice_as_long_to_be_quiet_again() -> None:
    core = disturbed_core()
    core.free(1)
    core.free(2)
    for num_recipes in (1, 1, 0):
        core.end_step()
        core.op([], [(4, KIB)])
        assert core.simulator.stats()["num_recipes"] == num_recipes
        core.free(4)


@pytest.mark.parametrize("policy", ["coop", "coop-paper", "dtr", "dte"])
def test_what_was_not_recorded_is_saved_and_comes_back(policy: str) -> None:
    core = quiet_core(4 * KIB, policy=policy)
    for storage in range(4):
        core.op([], [(storage, KIB)])
    cookies = [core.simulator.cookie(storage) for storage in range(4)]
    core.op([], [(4, 2 * KIB)])
    stats = core.simulator.stats()
    assert stats["num_saves"] == stats["num_evictions"] == 2
    assert stats["saved_bytes"] == 2 * KIB
    assert sum(core.simulator.is_resident(storage) for storage in range(4)) == 2
    core.free(4)
    for storage in range(4):
        assert core.materialize(storage)
        assert core.simulator.cookie(storage) == cookies[storage]


def test_what_is_saved_is_not_saved_again() -> None:
    core = disturbed_core()
    core.materialize(1)
    assert_comes_back(core, 1)
    assert core.simulator.stats()["num_saves"] == 1
    assert core.simulator.stats()["num_evictions"] == 2


def test_the_operator_that_does_not_fit_was_quiet_and_what_it_makes_is_saved_too() -> None:
    core = quiet_core(2 * KIB)
    core.op([], [(1, KIB)])
    core.op([], [(2, 2 * KIB)])
    assert_comes_back(core, 2)
    assert core.simulator.stats()["num_saves"] == 2


def test_one_that_is_asked_to_go_is_saved() -> None:
    core = quiet_core(8 * KIB)
    core.op([], [(1, KIB)])
    assert_comes_back(core, 1)
    core.op([], [(2, KIB)])  # still quiet
    assert core.simulator.is_root(2)


def test_what_stays_for_good_in_any_step_is_not_saved() -> None:
    core = quiet_core(16 * KIB)
    core.op([], [(1, KIB)])
    core.make_root(1)  # a gradient
    core.begin_step()
    core.op([], [(2, KIB)])  # an optimizer's state
    core.end_step()
    core.op([], [(3, KIB)])
    core.end_step()
    core.end_step()  # 3 has survived a whole step
    core.op([], [(4, KIB)], replayable=False)
    core.root(5, KIB)
    core.op([], [(6, KIB)])
    for storage in range(1, 7):
        core.evict(storage)
    assert [s for s in range(1, 7) if not core.simulator.is_resident(s)] == [6]


def test_what_is_not_saved_yet_is_written_where_it_is() -> None:
    core = disturbed_core()
    offset = core.simulator.offset(2)
    core.op(writes=[2])
    assert core.simulator.offset(2) == offset
    assert_comes_back(core, 2)
    core.op(writes=[2])  # it is another version now
    assert_comes_back(core, 2)
    assert core.simulator.stats()["num_saves"] == 2


def test_a_replay_reads_the_old_bytes_of_what_was_written_before_it_was_saved() -> None:
    core = disturbed_core()
    core.free(1)
    core.op([], [(4, KIB)])
    core.op(writes=[4, 2])  # keeps the old bytes of 2
    core.op(writes=[2])
    for _ in range(2):
        assert_comes_back(core, 4)


def test_bytes_that_a_record_reads_stay_when_their_storage_dies() -> None:
    core = disturbed_core()
    core.op([2], [(4, KIB)])
    cookie = core.simulator.cookie(4)
    core.free(2)
    assert_comes_back(core, 4)
    assert core.simulator.stats()["num_saves"] == 1
    # They may be evicted, too.
    assert core.op([], [(5, 4 * KIB)])
    assert core.simulator.stats()["num_saves"] == 2
    core.free(5)
    assert core.materialize(4)
    assert core.simulator.cookie(4) == cookie
