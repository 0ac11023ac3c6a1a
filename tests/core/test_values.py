"""Values and recipes against the model: whatever happens, no content is lost or wrong."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coop._native import _C
from tests.core.model import Model

ALIGNMENT = 64
ROOT, FREE, KEEP, UNKEEP, EVICT, MATERIALIZE, BEGIN_STEP, END_STEP, MAKE_ROOT = range(1, 10)
SIZES = st.integers(0, 12 * ALIGNMENT)


def rounded(num_bytes: int) -> int:
    return max(-(-num_bytes // ALIGNMENT), 1) * ALIGNMENT


class Values(RuleBasedStateMachine):
    """Runs operators in a tight budget. The simulator itself refuses a replay that reads wrong."""

    @initialize(
        budget=st.integers(8, 64),
        policy=st.sampled_from(("coop", "coop", "dtr", "dte")),
        window=st.booleans(),
        partition=st.booleans(),
        inplace=st.booleans(),
        small_bytes=st.sampled_from((0, 0, ALIGNMENT, 3 * ALIGNMENT)),
        host_units=st.sampled_from((0, 0, 6, 40, 400)),
    )
    def start(
        self,
        budget: int,
        policy: str,
        window: bool,
        partition: bool,
        inplace: bool,
        small_bytes: int,
        host_units: int,
    ) -> None:
        self.budget = budget * ALIGNMENT
        self.small_bytes = small_bytes
        self.keeps_dead = policy == "coop"
        self.trace = _C.Trace()
        self.simulator = _C.Simulator(
            _C.Config(
                self.budget,
                policy,
                window,
                partition,
                inplace,
                ALIGNMENT,
                small_bytes=small_bytes,
                host_bytes=host_units * ALIGNMENT,
                link=_C.LinkProfile(1e9, 1e9, latency_ns=0),
            )
        )
        self.has_host = host_units > 0
        self.model = Model()
        self.num_storages = 0
        self.in_step = False

    def pick(self, data: st.DataObject, **sizes: int) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(self.model.storages)), **sizes))

    def apply(self, kind: int, storage: int = 0, num_bytes: int = 0) -> bool:
        self.trace.add(kind, storage, num_bytes, 0)
        return self.simulator.apply_last(self.trace)

    def seen(self, storage: int) -> int:
        return self.simulator.cookie(storage)

    @rule(num_bytes=SIZES)
    def root(self, num_bytes: int) -> None:
        self.num_storages += 1
        if self.apply(ROOT, self.num_storages, num_bytes):
            self.model.root(self.num_storages, num_bytes, self.seen(self.num_storages))

    @precondition(lambda self: self.model.storages)
    @rule(
        data=st.data(),
        output_bytes=st.lists(SIZES, max_size=3),
        temporary_bytes=st.lists(SIZES, max_size=2),
        cost=st.integers(0, 1000),
        left=st.booleans(),
        replayable=st.integers(0, 9).map(bool),
        backward=st.booleans(),
    )
    def operator(
        self,
        data: st.DataObject,
        output_bytes: list[int],
        temporary_bytes: list[int],
        cost: int,
        left: bool,
        replayable: bool,
        backward: bool,
    ) -> None:
        # A storage more than once is several views of it.
        inputs = self.pick(data, max_size=4)
        written = self.pick(data, max_size=2, unique=True)
        writes = [s for s in written if s in inputs or data.draw(st.booleans())]
        overwrites = [s for s in written if s not in writes]
        inputs += [s for s in written if s not in inputs]
        outputs = []
        for num_bytes in output_bytes:
            self.num_storages += 1
            outputs.append((self.num_storages, num_bytes))
        memory = self.memory_steps(data, len(outputs), temporary_bytes)
        self.trace.add_operator(
            0, cost, left, replayable, inputs, [s for s, _ in outputs], output_bytes, writes,
            overwrites, memory, 0, backward=backward,
        )  # fmt: skip
        if not self.simulator.apply_last(self.trace):
            self.model.failed()
            return
        results = [s for s, _ in outputs] + writes + overwrites
        self.model.operator(
            [s for s in inputs if s not in overwrites],
            outputs,
            writes + overwrites,
            [self.seen(s) for s in results],
        )

    def memory_steps(
        self, data: st.DataObject, num_outputs: int, temporary_bytes: list[int]
    ) -> list[tuple[int, int]]:
        if not temporary_bytes:
            return []
        steps = [(0, index) for index in range(num_outputs)]
        steps += [(1, num_bytes) for num_bytes in temporary_bytes]
        steps = data.draw(st.permutations(steps))
        if data.draw(st.booleans()):
            steps.append((2, 0))
        return steps

    @precondition(lambda self: self.model.storages)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        (storage,) = self.pick(data, min_size=1, max_size=1)
        assert self.apply(FREE, storage)
        del self.model.storages[storage]

    @precondition(lambda self: self.model.storages)
    @rule(data=st.data())
    def pin_or_unpin(self, data: st.DataObject) -> None:
        (storage,) = self.pick(data, min_size=1, max_size=1)
        live = self.model.storages[storage]
        keep = live.keeps == 0
        assert self.apply(KEEP if keep else UNKEEP, storage)
        live.keeps += 1 if keep else -1

    @precondition(lambda self: self.model.storages)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        for storage in self.pick(data, min_size=1, max_size=4):
            assert self.apply(EVICT, storage)
            keeps = self.simulator.is_root(storage) or self.model.storages[storage].keeps
            if not keeps:
                assert not self.simulator.is_resident(storage)

    @precondition(lambda self: self.model.storages)
    @rule(data=st.data())
    def materialize(self, data: st.DataObject) -> None:
        (storage,) = self.pick(data, min_size=1, max_size=1)
        if self.apply(MATERIALIZE, storage):
            assert self.simulator.is_resident(storage)

    @precondition(lambda self: self.model.storages)
    @rule(data=st.data())
    def make_root(self, data: st.DataObject) -> None:
        (storage,) = self.pick(data, min_size=1, max_size=1)
        if self.apply(MAKE_ROOT, storage):
            # What does not fit stays recomputable.
            assert self.simulator.is_root(storage) or not self.simulator.is_resident(storage)

    @rule(nth=st.integers(0, 3))
    def fail_copy(self, nth: int) -> None:
        self.simulator.fail_copy(nth)

    @rule()
    def step(self) -> None:
        self.in_step = not self.in_step
        assert self.apply(BEGIN_STEP if self.in_step else END_STEP)

    @rule()
    def everything_comes_back(self) -> None:
        """What fits alone has the right content."""
        for storage, live in self.model.storages.items():
            if self.apply(MATERIALIZE, storage):
                assert self.seen(storage) == live.cookie

    @invariant()
    def the_core_is_valid(self) -> None:
        assert self.simulator.is_valid()

    @invariant()
    def nothing_is_lost_or_wrong(self) -> None:
        for storage, live in self.model.storages.items():
            if self.simulator.is_resident(storage):
                assert self.seen(storage) == live.cookie
            else:
                assert self.simulator.is_saved(storage) or not self.simulator.is_root(storage)

    @invariant()
    def blocks_do_not_overlap_and_add_up(self) -> None:
        stats = self.simulator.stats()
        resident = sorted(
            (self.simulator.offset(storage), rounded(live.bytes))
            for storage, live in self.model.storages.items()
            if self.simulator.is_resident(storage)
        )
        end = 0
        for offset, num_bytes in resident:
            assert offset >= end
            end = offset + num_bytes
        assert end <= self.budget
        held = sum(num_bytes for _, num_bytes in resident)
        assert held <= stats["held_bytes"] <= stats["peak_bytes"] <= self.budget
        assert stats["free_bytes"] == self.budget - stats["held_bytes"]
        if self.small_bytes > 0:
            return
        # What is held and has no storage can only be a private copy of a root (Rule 6), or, under
        # coop, a dead value that something evicted is made from (Rule 4).
        offsets = {offset for offset, _ in resident}
        for offset, num_bytes, cost, _, is_held in self.simulator.blocks():
            if is_held and offset not in offsets:
                assert cost is None or self.has_host or self.keeps_dead
                held += num_bytes
        assert held == stats["held_bytes"]

    @invariant()
    def scores_are_fresh(self) -> None:
        """The cost on the map is what the neighbourhood says now; None for what must stay."""
        costs = {offset: cost for offset, _, cost, _, is_held in self.simulator.blocks() if is_held}
        for storage, live in self.model.storages.items():
            offset = self.simulator.offset(storage)
            if not self.simulator.is_resident(storage) or offset not in costs:
                continue
            if self.small_bytes > 0 and costs[offset] is None:
                continue  # it may be an extent of the small area, which begins at the same offset
            if not self.simulator.can_leave(storage):
                assert self.simulator.is_root(storage) or live.keeps
                assert costs[offset] is None
            elif costs[offset] < 0:  # made in a backward pass: the cost of moving it
                assert -costs[offset] <= max(self.simulator.neighbourhood(storage, False), 1)
            else:
                assert costs[offset] == self.simulator.neighbourhood(storage, False)


@pytest.mark.debug_build
def test_values_and_records_agree_with_the_model() -> None:
    run_state_machine_as_test(
        Values,
        settings=settings(
            max_examples=200,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
