"""What is tried before a program does not fit, one small program each (decision 0004)."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build


@pytest.mark.parametrize("policy", ["coop", "coop-paper", "dtr", "dte"])
def test_an_input_stays_while_another_is_brought_back(policy: str) -> None:
    core = Driver(768, policy=policy)
    core.op([], [(1, 256)], cost=1)
    core.op([], [(2, 256)], cost=1000)
    core.op([], [(3, 256)], cost=10)
    core.evict(3)
    core.op([], [(4, 256)], cost=1000)
    # 1 is by far the cheapest to evict for the sake of 3, but it is needed beside it.
    assert core.op([3, 1])
    assert core.simulator.is_resident(1)
    assert core.simulator.stats()["num_replays"] == 1


def test_an_input_goes_while_another_is_brought_back_if_there_is_no_other_room() -> None:
    core = Driver(768)
    core.op([], [(1, 256)])
    core.op([], [(2, 256)], temporaries=[512])  # in all of the budget
    assert core.materialize(1)
    core.evict(2)
    cookie = core.simulator.cookie(1)
    assert core.op([1, 2])
    assert core.simulator.cookie(1) == cookie
    assert core.simulator.stats()["num_replays"] == 3  # 1 above, then 2, and 1 again


def test_what_waits_for_a_replay_is_moved_to_make_room_for_it() -> None:
    core = Driver(1088)
    core.op([], [(1, 256)])
    core.op([], [(2, 768)])
    core.op([1, 2], [(3, 64)])
    for storage in (1, 2, 3):
        core.evict(storage)
    core.op([], [(4, 256)])
    core.materialize(1)
    core.free(4)
    assert core.simulator.offset(1) == 256  # with 256 bytes on one side and 576 on the other
    before = core.simulator.stats()
    # 1 waits for 2, and both are needed to recompute 3.
    assert core.materialize(3)
    after = core.simulator.stats()
    assert core.simulator.offset(1) == 0
    assert after["num_evictions"] == before["num_evictions"]
    assert after["num_replays"] == before["num_replays"] + 2
    assert after["num_retries"] == before["num_retries"] + 1
    assert after["moved_bytes"] == before["moved_bytes"] + 256


def in_the_middle(policy: str = "coop") -> Driver:
    """A root of 256 bytes, from which 3 was made, with 256 free bytes below it and 512 above."""
    core = Driver(1024, policy=policy)
    core.root(1, 256)
    core.root(2, 256)
    core.free(1)
    core.op([2], [(3, 64)])
    return core


@pytest.mark.parametrize(
    ("policy", "fits"), [("coop", True), ("coop-paper", False), ("dtr", False), ("dte", False)]
)
def test_a_root_that_only_replays_read_is_moved(policy: str, fits: bool) -> None:
    core = in_the_middle(policy)
    cookie = core.simulator.cookie(3)
    core.free(2)
    assert core.op([], [(4, 768)], backward=False) == fits
    core.free(4) if fits else None
    assert core.materialize(3)  # from the root
    assert core.simulator.cookie(3) == cookie
    assert core.simulator.stats()["moved_bytes"] == (256 if fits else 0)


def test_a_root_that_somebody_may_see_is_not_moved() -> None:
    core = in_the_middle()
    assert not core.op([], [(4, 768)])
    assert core.simulator.offset(2) == 256
    assert core.simulator.stats()["moved_bytes"] == 0


def test_a_root_that_only_replays_read_is_moved_for_a_replay() -> None:
    core = Driver(1024)
    core.op([], [(1, 768)])
    core.evict(1)
    core.root(2, 256)
    core.root(3, 256)
    core.free(2)
    core.op([3], [(4, 64)])
    core.evict(4)
    core.free(3)
    assert core.op([1])
    assert core.simulator.stats()["moved_bytes"] == 256
    core.free(1)
    assert core.materialize(4)


@pytest.mark.parametrize("policy", ["coop", "dte"])
def test_gradients_are_put_together_before_an_optimizer_makes_its_state(policy: str) -> None:
    core = Driver(1408, policy=policy)
    core.root(1, 256)
    for activation, gradient in ((2, 3), (4, 5)):
        core.op([1], [(activation, 256)])
        core.op([1], [(gradient, 256)])
        core.make_root(gradient)
    core.free(2)
    core.free(4)
    core.begin_step()
    assert core.op([], [(6, 256)], left=False)
    assert core.simulator.stats()["num_evictions"] == 0
    core.op([3, 5], writes=[1, 6])
    core.end_step()
    offsets = [core.simulator.offset(storage) for storage in (1, 3, 5, 6)]
    if policy == "coop":
        assert offsets == [0, 256, 512, 1152]  # in one piece, and the state at the other end
        assert core.simulator.stats()["moved_bytes"] == 512
    else:
        assert offsets == [0, 512, 1024, 256]
        assert core.simulator.stats()["moved_bytes"] == 0


def test_gradients_stay_in_later_steps_without_pressure() -> None:
    core = Driver(4096)
    core.root(1, 256)
    core.begin_step()
    core.end_step()
    core.op([1], [(2, 256)])
    core.op([1], [(3, 256)])
    core.make_root(3)
    core.free(2)
    core.begin_step()
    core.op([], [(4, 256)], left=False)
    core.end_step()
    assert core.simulator.offset(3) == 512
    assert core.simulator.stats()["moved_bytes"] == 0


@pytest.mark.parametrize(("policy", "evicted"), [("coop", 4), ("coop-paper", 5)])
def test_where_nothing_is_cheap_the_neighbourhood_is_looked_at_closely(
    policy: str, evicted: int
) -> None:
    core = Driver(1280, policy=policy)
    core.op([], [(1, 256)], cost=10**9)
    core.op([], [(2, 256)], cost=1)
    core.op([1, 2], [(3, 256)], cost=1)
    core.op([2], [(4, 256)], cost=1)
    core.op([], [(5, 256)], cost=1000)
    for storage in (1, 2, 3):
        core.evict(storage)
    core.root(6, 768)
    # By union-find, 4 is beside 1, which it does not need: only 2 would be recomputed with it.
    assert core.simulator.neighbourhood(4, False) == 10**9 + 3
    assert core.simulator.neighbourhood(4, True) == 2
    assert core.op([], [(7, 256)], cost=1)
    assert [core.simulator.is_resident(storage) for storage in (4, 5)] == [
        storage != evicted for storage in (4, 5)
    ]


@pytest.mark.parametrize(("policy", "gone", "place"), [("coop", 1, 0), ("coop-paper", 2, -1)])
def test_what_a_backward_pass_made_is_moved_rather_than_evicted(
    policy: str, gone: int, place: int
) -> None:
    core = Driver(1024, policy=policy)
    core.op([], [(1, 256)], cost=1000, backward=False)
    core.op([], [(2, 256)], cost=100)
    core.op([], [(3, 256)], cost=10**9, left=False, backward=False)
    # Beside 256 free bytes lies 2, and behind it 1.
    assert core.op([], [(4, 512)], backward=False)
    assert [s for s in (1, 2, 3) if not core.simulator.is_resident(s)] == [gone]
    assert core.simulator.offset(2) == place
    assert core.simulator.offset(4) == 256
    stats = core.simulator.stats()
    assert (stats["num_evictions"], stats["num_retries"]) == (1, 0)
    assert stats["moved_bytes"] == (256 if policy == "coop" else 0)


@pytest.mark.parametrize("replayable", [True, False])
def test_what_a_backward_pass_made_is_evicted_where_nothing_else_is_left(replayable: bool) -> None:
    core = Driver(1024)
    core.op([], [(1, 64)], backward=False)
    core.op([], [(2, 512)])
    assert core.op([1], [(3, 512)], replayable=replayable)
    assert [core.simulator.is_resident(s) for s in (1, 2, 3)] == [True, False, True]
    # What can be tried again was, with everything else evicted first.
    assert core.simulator.stats()["num_retries"] == (1 if replayable else 0)
    assert core.materialize(2) == replayable  # in the place of 3, if that can be recomputed


def test_what_an_optimizer_makes_is_evicted_as_everything_else() -> None:
    core = Driver(1024)
    core.op([], [(1, 256)], cost=1000, backward=False)
    core.begin_step()
    core.op([], [(2, 256)], cost=100)
    core.op([], [(3, 256)], cost=10**9, left=False)
    assert core.op([], [(4, 512)])
    assert not core.simulator.is_resident(2)
    core.end_step()


def test_a_value_that_would_hardly_move_is_evicted() -> None:
    core = Driver(64 * 100)
    core.op([], [(1, 64)], cost=1, backward=False)
    core.op([], [(2, 64 * 64)], cost=100)
    # 64 bytes below it are a sixty-fourth of its size: too many pieces for too little.
    assert core.op([], [(3, 64 * 36)], backward=False)
    assert [core.simulator.is_resident(s) for s in (1, 2, 3)] == [False, False, True]
    assert core.simulator.stats()["moved_bytes"] == 0
