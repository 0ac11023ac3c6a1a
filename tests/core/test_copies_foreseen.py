"""Schedules with copies in main memory: numbers by hand. The link moves one byte a nanosecond.

A step makes what it needs at its end, and in its middle needs the room. Work takes time and no
memory.
"""

import pytest

from coop._native import _C
from tests.core.driver import Driver
from tests.core.test_foresight import MIB, Residual

pytestmark = pytest.mark.debug_build
UNIT = 64
LINK = _C.LinkProfile(out_bytes_per_second=1e9, in_bytes_per_second=1e9, latency_ns=0)
STEPS = 8
COUNTED = (
    "replay_ns", "host_wait_ns", "num_host_saves", "host_saved_bytes", "host_loaded_bytes",
    "num_followed", "num_searches",
)  # fmt: skip


class Program:
    """Steps of the same operators, each with storages of its own."""

    def __init__(self, units: int, host_units: int, **options: object) -> None:
        self.core = Driver(units * UNIT, host_bytes=host_units * UNIT, link=LINK, **options)
        self.storages = 0

    def make(self, units: int, cost: int, reads: tuple[int, ...] = ()) -> int:
        self.storages += 1
        made = [(self.storages, units * UNIT)]
        assert self.core.op(reads, made, cost=cost, backward=False)
        return self.storages

    def work(self, cost: int, reads: tuple[int, ...] = ()) -> None:
        assert self.core.op(reads, cost=cost, backward=False)

    def free(self, *storages: int) -> None:
        for storage in storages:
            assert self.core.free(storage)

    def end(self) -> None:
        assert self.core.begin_step()
        assert self.core.end_step()

    def stats(self) -> dict[str, float]:
        stats = self.core.simulator.stats()
        return {key: stats[key] for key in COUNTED}

    def step(self, *args: int) -> None:
        raise NotImplementedError

    def last_step(self, *args: int, steps: int = STEPS) -> dict[str, float]:
        """What the last of some steps did."""
        for _ in range(steps - 1):
            self.step(*args)
        before = self.stats()
        self.step(*args)
        after = self.stats()
        assert self.core.simulator.is_valid()
        return {key: after[key] - before[key] for key in COUNTED}


class OneGap(Program):
    """Four units that are made first and needed last, beside four others in a budget of six."""

    def step(self, cost: int, out_time: int, in_time: int) -> None:
        first = self.make(4, cost)
        self.work(out_time)
        other = self.make(4, 1000)
        self.work(1000, (other,))
        self.free(other)
        self.work(in_time)
        self.work(1000, (first,))
        self.free(first)
        self.end()


def test_a_copy_that_the_link_has_time_for_costs_nothing() -> None:
    last = OneGap(6, 16).last_step(100, 1000, 1000)
    assert last == {
        "replay_ns": 0, "host_wait_ns": 0, "num_host_saves": 1, "host_saved_bytes": 4 * UNIT,
        "host_loaded_bytes": 4 * UNIT, "num_followed": 1, "num_searches": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("out_time", "in_time"), [(100, 1000), (1000, 100), (100, 100)])
def test_what_the_link_has_no_time_for_is_waited_for(out_time: int, in_time: int) -> None:
    """A copy takes 256 ns, of which the operators beside it take 100."""
    last = OneGap(6, 16).last_step(10_000, out_time, in_time)
    assert last["replay_ns"] == 0
    assert last["host_wait_ns"] == (2 if out_time == in_time else 1) * 156
    assert last["num_followed"] == 1


def test_what_is_recomputed_in_less_time_than_a_copy_is_waited_for_is_recomputed() -> None:
    last = OneGap(6, 16).last_step(155, 100, 1000)
    assert (last["replay_ns"], last["host_wait_ns"], last["host_saved_bytes"]) == (155, 0, 0)


def test_a_pool_that_is_too_small_for_it_leaves_it_to_recomputation() -> None:
    last = OneGap(6, 3).last_step(100, 1000, 1000)
    assert (last["replay_ns"], last["host_wait_ns"], last["host_saved_bytes"]) == (100, 0, 0)


class TwoGaps(Program):
    """Two of four units, one expensive and one cheap, that both have to leave.

    The first one leaves while the second is made.
    """

    def step(self, expensive: int, cheap: int, out_time: int) -> None:
        first = self.make(4, expensive)
        second = self.make(4, cheap)
        self.work(out_time)
        other = self.make(8, 1000)
        self.work(1000, (other,))
        self.free(other)
        self.work(1000)
        self.work(1000, (second,))
        self.work(1000, (first,))
        self.free(first, second)
        self.end()


def test_a_queue_that_is_full_is_for_what_is_expensive() -> None:
    """Of 512 ns for both there are 300: the cheap one is made again in less than what is left."""
    last = TwoGaps(10, 32).last_step(2000, 200, 100)
    assert (last["replay_ns"], last["host_wait_ns"]) == (200, 0)
    assert last["host_saved_bytes"] == last["host_loaded_bytes"] == 4 * UNIT


def test_a_queue_with_room_for_both_is_for_both() -> None:
    last = TwoGaps(10, 32).last_step(2000, 200, 312)
    assert (last["replay_ns"], last["host_wait_ns"]) == (0, 0)
    assert last["host_saved_bytes"] == last["host_loaded_bytes"] == 8 * UNIT


def test_what_is_not_complete_is_waited_for() -> None:
    """Neither can be recomputed in less time. The first has left when the work begins."""
    last = TwoGaps(10, 32).last_step(5000, 5000, 80)
    assert (last["replay_ns"], last["host_wait_ns"]) == (0, 256 - 80)


class Twice(Program):
    """What is needed three times, with no room between: one copy out, two in."""

    def step(self) -> None:
        first = self.make(4, 5000)
        for _ in range(2):
            self.work(1000)
            other = self.make(4, 1000)
            self.work(1000, (other,))
            self.free(other)
            self.work(1000)
            self.work(1000, (first,))
        self.free(first)
        self.end()


def test_what_was_copied_once_leaves_again_for_nothing() -> None:
    last = Twice(6, 16).last_step()
    assert (last["replay_ns"], last["host_wait_ns"]) == (0, 0)
    assert (last["host_saved_bytes"], last["host_loaded_bytes"]) == (4 * UNIT, 8 * UNIT)


class ChangesItsMind(OneGap):
    """The room is not needed after all, or the value is read, or dies, while it is on its way."""

    def step(self, way: int) -> None:
        first = self.make(4, 5000)
        made = self.core.simulator.is_resident(first)  # or it was given up at once
        cookie = self.core.simulator.cookie(first) if made else None
        self.work(1000)
        if way == 1:
            self.work(50, (first,))
            assert self.core.op(writes=[first], cost=10, backward=False)
            cookie = self.core.simulator.cookie(first)
        other = self.make(4, 1000)
        self.work(1000, (other,))
        self.free(other)
        if way == 2:
            self.work(10)
            self.free(first, self.make(6, 10))
            self.end()
            return
        self.work(1000)
        if way == 3:
            assert self.core.materialize(first)
        if way == 4:
            self.free(self.make(6, 10))
        self.work(1000, (first,))
        assert cookie in (None, self.core.simulator.cookie(first))
        self.free(first)
        self.end()


@pytest.mark.parametrize("way", [1, 2, 3, 4])
def test_a_step_that_differs_while_copies_are_under_way(way: int) -> None:
    program = ChangesItsMind(6, 16)
    assert program.last_step(0)["num_followed"] == 1
    program.step(way)
    assert program.core.simulator.is_valid()
    assert program.last_step(0)["num_followed"] == 1


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_placement_or_a_copy_that_fails_while_it_is_followed(failing: int) -> None:
    program = OneGap(6, 16)
    assert program.last_step(5000, 1000, 1000)["num_followed"] == 1
    program.core.simulator.fail_copy(failing)
    program.step(5000, 1000, 1000)
    program.core.simulator.fail_copy(0)
    program.step(5000, 1000, 1000)
    assert program.core.simulator.is_valid()


class Streaming(Program):
    """Four units each of roots that are used one after the other, where only one has room."""

    def __init__(self, num_roots: int, units: int) -> None:
        super().__init__(units, 64)
        self.storages = num_roots
        self.num_roots = num_roots
        for root in range(1, num_roots + 1):
            assert self.core.root(root, 4 * UNIT)

    def step(self, work: int, writes: int) -> None:
        # Something that has a recipe: a step that makes nothing needs no schedule.
        first = self.make(1, 10)
        for root in range(1, self.num_roots + 1):
            written = [root] if writes else []
            reads = () if writes else (root,)
            assert self.core.op(reads, writes=written, updates=True, cost=1000, backward=False)
            # Room is given away between operators: one for the way out, one for the way in.
            self.work(work)
            self.work(work)
        self.work(10, (first,))
        self.free(first)
        self.end()

    def contents(self) -> list[int]:
        found = []
        for root in range(1, self.num_roots + 1):
            assert self.core.materialize(root)
            found.append(self.core.simulator.cookie(root))
        return found


def test_roots_that_are_read_one_after_the_other_stream_for_nothing() -> None:
    """They never change, so after their first copies they only come back: in beside the work."""
    last = Streaming(4, 7).last_step(1000, 0, steps=12)
    assert last == {
        "replay_ns": 0, "host_wait_ns": 0, "num_host_saves": 0, "host_saved_bytes": 0,
        "host_loaded_bytes": 16 * UNIT, "num_followed": 1, "num_searches": 0,
    }  # fmt: skip


def test_roots_that_are_written_stream_both_ways() -> None:
    last = Streaming(4, 7).last_step(1000, 1, steps=12)
    assert (last["host_wait_ns"], last["num_followed"], last["num_searches"]) == (0, 1, 0)
    assert last["host_saved_bytes"] == last["host_loaded_bytes"] == 16 * UNIT


def test_where_three_roots_have_room_one_leaves_and_one_comes_while_one_is_used() -> None:
    last = Streaming(6, 15).last_step(0, 1, steps=12)
    assert (last["host_wait_ns"], last["num_followed"]) == (0, 1)


@pytest.mark.parametrize("writes", [0, 1])
def test_roots_that_stream_hold_what_they_hold_without_a_budget(writes: int) -> None:
    program, plain = Streaming(5, 7), Streaming(5, 64)
    for _ in range(9):
        program.step(100, writes)
        plain.step(100, writes)
    assert program.stats()["num_followed"] > 3
    assert program.contents() == plain.contents()


def test_a_link_that_is_too_slow_changes_nothing() -> None:
    """The schedules are those that there are without it."""
    slow = _C.LinkProfile(out_bytes_per_second=1e6, in_bytes_per_second=1e6, latency_ns=0)
    program = Residual()
    for _ in range(6):
        program.step()
    for mib in (30, 40, 50):
        found = []
        for options in ({}, {"host_bytes": 1000 * MIB, "link": slow}):
            result = _C.simulate(program.trace, _C.Config(mib * MIB, "coop", **options))
            assert result["fitted"]
            assert result["stats"]["host_saved_bytes"] == 0
            found.append(result["steps"])
        assert found[0] == found[1]
