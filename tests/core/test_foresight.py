"""Steps that repeat are scheduled: less is recomputed, and a step that differs is left in time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from coop._native import _C

KIND = _C.entry_kinds()
MIB = 2**20
DEPTH = 16


class Residual:
    """Steps of a network whose sums nobody saves: each is dead once the next one is made."""

    def __init__(self) -> None:
        self.trace = _C.Trace()
        self.storages = 0

    def operator(self, inputs: list[int], mib: int, *, backward: bool = False) -> int:
        self.storages += 1
        self.trace.add_operator(
            op=len(inputs), cost=1000.0 * mib, left=False, replayable=True, inputs=inputs,
            outputs=[self.storages], output_bytes=[mib * MIB], writes=[], overwrites=[], memory=[],
            line=0, backward=backward,
        )  # fmt: skip
        return self.storages

    def add(self, kind: str, storage: int = 0, num_bytes: int = 0) -> None:
        self.trace.add(KIND[kind], storage, num_bytes, 0)

    def step(self, depth: int = DEPTH, *, made_last: bool = False) -> None:
        stream, saved = self.operator([], 2), []
        for _ in range(depth):
            hidden = self.operator([stream], 4)
            saved.append(self.operator([hidden], 4))
            following = self.operator([stream, saved[-1]], 2)
            self.add("free", stream)
            self.add("free", hidden)
            stream = following
        gradient = self.operator([stream], 2, backward=True)
        self.add("free", stream)
        for activation in reversed(saved):
            following = self.operator([gradient, activation], 2, backward=True)
            self.add("free", activation)
            self.add("free", gradient)
            gradient = following
        self.add("free", gradient)
        if made_last:
            self.storages += 1
            self.trace.add(KIND["root"], self.storages, MIB, 0)
            self.add("free", self.storages)
        self.add("step begin")
        self.add("step end")


def run(program: Residual, mib: int, without: list[str]) -> tuple[list[float], dict[str, float]]:
    """Extra compute of each step, and the statistics."""
    result = _C.simulate(program.trace, _C.Config(mib * MIB, "coop", without=without))
    assert result["fitted"]
    ends = [(0.0, 0.0, 0, 0), *result["steps"]]
    extra = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(ends)]
    return extra, result["stats"]


@pytest.mark.debug_build
def test_a_step_that_was_seen_once_is_followed() -> None:
    program = Residual()
    for _ in range(6):
        program.step()
    online, _ = run(program, 40, ["foresight"])
    foreseen, stats = run(program, 40, [])
    assert foreseen[:2] == online[:2]  # one that evicts, and one that is noted
    assert max(foreseen[2:]) < min(online[2:])
    assert stats["num_schedules"] >= 1
    assert stats["num_followed"] >= 1


@pytest.mark.debug_build
def test_the_same_steps_have_the_same_schedules_in_every_run() -> None:
    program = Residual()
    for _ in range(6):
        program.step()
    assert run(program, 40, [])[0] == run(program, 40, [])[0]


def test_less_is_recomputed_with_more_memory() -> None:
    program = Residual()
    for _ in range(6):
        program.step()
    extra = [run(program, mib, [])[0][-1] for mib in range(30, 72, 2)]
    assert extra == sorted(extra, reverse=True)


@pytest.mark.debug_build
def test_steps_that_never_repeat_are_scheduled_once_and_not_again() -> None:
    program = Residual()
    for depth in range(DEPTH - 4, DEPTH + 4):
        program.step(depth)
    _, stats = run(program, 40, [])
    assert stats["num_schedules"] == 1
    assert stats["num_followed"] == 0


@pytest.mark.debug_build
def test_a_program_that_begins_to_repeat_is_scheduled_when_a_step_comes_again() -> None:
    program = Residual()
    for depth in [*range(DEPTH - 4, DEPTH), *[DEPTH] * 4]:
        program.step(depth)
    _, stats = run(program, 40, [])
    assert stats["num_followed"] == 2  # two are noted, two followed


@pytest.mark.debug_build
def test_what_is_made_after_the_last_operator_of_a_step_is_part_of_it() -> None:
    """By no operator, or by one of another thread that still runs."""
    program = Residual()
    for _ in range(6):
        program.step(made_last=True)
    _, stats = run(program, 40, [])
    assert stats["num_followed"] >= 1


@pytest.mark.debug_build
def test_from_the_first_operator_that_differs_on_the_policy_decides() -> None:
    program = Residual()
    for depth in [DEPTH] * 5 + [DEPTH - 2, DEPTH, DEPTH]:
        program.step(depth)
    _, stats = run(program, 40, [])
    assert stats["num_left"] >= 1
    assert stats["num_followed"] >= 2


class Blocks(Residual):
    """A block is one operator, as a compiled graph is: one replay makes all that it saves."""

    def block(self, inputs: list[int], *sizes: int, backward: bool) -> list[int]:
        outputs = list(range(self.storages + 1, self.storages + 1 + len(sizes)))
        self.storages += len(sizes)
        self.trace.add_operator(
            op=len(inputs), cost=1000.0, left=False, replayable=True, inputs=inputs,
            outputs=outputs, output_bytes=[mib * MIB for mib in sizes], writes=[], overwrites=[],
            memory=[], line=0, backward=backward,
        )  # fmt: skip
        return outputs

    def step(self, depth: int = DEPTH) -> None:
        stream, saved = self.operator([], 1), []
        for _ in range(depth):
            following, *others = self.block([stream], 1, 3, 1, 2, backward=False)
            saved.append([stream, *others])
            stream = following
        (gradient,) = self.block([stream], 1, backward=True)
        self.add("free", stream)
        for inputs in reversed(saved):
            (following,) = self.block([gradient, *inputs], 1, backward=True)
            for storage in (gradient, *inputs):
                self.add("free", storage)
            gradient = following
        self.add("free", gradient)
        self.add("step begin")
        self.add("step end")


@pytest.mark.debug_build
def test_what_one_replay_makes_is_given_up_together() -> None:
    """Six MiB of a block are of use once. One by one, each would have the price of all."""
    program = Blocks()
    for _ in range(6):
        program.step()
    _, ample = run(program, 1000, [])
    for num_blocks in (2, 4, 6):
        budget_mib = ample["peak_bytes"] // MIB - 5 * num_blocks
        extra, stats = run(program, budget_mib, [])
        assert stats["num_schedules"] == 1
        assert extra[-1] == num_blocks / (2 * DEPTH + 2)


class RandomStep(Residual):
    """The same random step, again and again: in-place writes, several readers, dead values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def step(self, depth: int = DEPTH, *, made_last: bool = False) -> None:
        draw = random.Random(self.seed)
        alive, saved = [self.operator([], 2)], []
        for _ in range(3 * depth):
            inputs = draw.sample(alive, min(len(alive), draw.randint(1, 2)))
            if draw.random() < 0.2 and inputs[0] not in saved:
                self.write(inputs[0])
                continue
            alive.append(self.operator(inputs, draw.choice([1, 2, 4])))
            if draw.random() < 0.5:
                saved.append(alive[-1])
            if len(alive) > 4:
                dead = alive.pop(0)
                if dead not in saved:
                    self.add("free", dead)
        gradient = self.operator([alive[-1]], 2, backward=True)
        for activation in reversed(saved):
            following = self.operator([gradient, activation], 2, backward=True)
            self.add("free", gradient)
            gradient = following
        for storage in dict.fromkeys([*alive, *saved, gradient]):
            self.add("free", storage)
        self.add("step begin")
        self.add("step end")

    def write(self, storage: int) -> None:
        self.trace.add_operator(
            op=9, cost=500.0, left=False, replayable=True, inputs=[storage], outputs=[],
            output_bytes=[], writes=[storage], overwrites=[], memory=[], line=0, backward=False,
        )  # fmt: skip


@pytest.mark.debug_build
@pytest.mark.parametrize("seed", range(12))
def test_a_followed_step_searches_nothing_and_recomputes_no_more_than_the_policy(seed: int) -> None:
    num_followed = 0
    for mib in (64, 48, 40, 32):
        results = {}
        for without in ([], ["foresight"]):
            for num_steps in (9, 10):
                program = RandomStep(seed)
                for _ in range(num_steps):
                    program.step()
                config = _C.Config(mib * MIB, "coop", without=without)
                results[not without, num_steps] = _C.simulate(program.trace, config)
        if not results[False, 10]["fitted"]:
            continue
        before, last = results[True, 9]["stats"], results[True, 10]["stats"]
        online = results[False, 10]["stats"]["replay_ns"] - results[False, 9]["stats"]["replay_ns"]
        assert last["replay_ns"] - before["replay_ns"] <= online
        if last["num_followed"] > before["num_followed"]:
            num_followed += 1
            assert last["num_searches"] == before["num_searches"]
            assert last["moved_bytes"] == before["moved_bytes"]
    assert num_followed > 0


def test_without_the_switch_and_in_the_published_policies_nothing_is_foreseen() -> None:
    program = Residual()
    for _ in range(5):
        program.step()
    for policy in ("coop-paper", "dtr", "dte"):
        stats = _C.simulate(program.trace, _C.Config(64 * MIB, policy))["stats"]
        assert stats["num_schedules"] == stats["num_followed"] == 0


class InPlaceNetwork(RandomStep):
    """Convolution, norm, and an activation in place of it, with random skips."""

    def step(self, depth: int = 10, *, made_last: bool = False) -> None:
        draw = random.Random(self.seed)
        results, saved = [self.operator([], 2)], []
        for _ in range(depth):
            skip = [draw.choice(results)] if draw.random() < 0.3 else []
            inputs = list(dict.fromkeys([results[-1], *skip]))
            convolution = self.operator(inputs, draw.choice([1, 2, 4, 8]))
            norm = self.operator([convolution], draw.choice([1, 2, 4, 8]))
            self.write(norm)
            saved.append((convolution, norm, inputs))
            results.append(norm)
        gradient = self.operator([results[-1]], 2, backward=True)
        for convolution, norm, inputs in reversed(saved):
            following = self.operator([gradient, convolution, norm, *inputs], 2, backward=True)
            for storage in (gradient, convolution, norm):
                self.add("free", storage)
            gradient = following
        self.add("free", results[0])
        self.add("free", gradient)
        self.add("step begin")
        self.add("step end")


@pytest.mark.debug_build
@pytest.mark.parametrize(
    ("seed", "mib"), [(11, 24), (56, 28), (3, 40), (14, 44), (1, 28), (10, 32)]
)
def test_a_schedule_goes_exactly_as_it_says(seed: int, mib: int) -> None:
    """What is followed searches nothing and moves nothing: every replay and place is foreseen.

    Each of these once did not: a version was to be read after it was written over; something was to
    be made ahead of an operator that had all its inputs; or a replay wrote over a version that was
    to be read again.
    """
    stats = {}
    for num_steps in (9, 10):
        program = InPlaceNetwork(seed)
        for _ in range(num_steps):
            program.step()
        stats[num_steps] = _C.simulate(program.trace, _C.Config(mib * MIB, "coop"))["stats"]
    before, last = stats[9], stats[10]
    assert last["num_followed"] == before["num_followed"] + 1
    for count in ("num_searches", "moved_bytes", "num_left"):
        assert last[count] == before[count]


class Scattered(Residual):
    """Parameters with room between them, which something had before the first step."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.trained = trained
        self.parameters = []
        holes = []
        for _ in range(4):
            self.parameters.append(self.root(4))
            holes.append(self.root(3))
        for hole in holes:
            self.add("free", hole)

    def root(self, mib: int) -> int:
        self.storages += 1
        super().add("root", self.storages, mib * MIB)
        return self.storages

    def add(self, kind: str, storage: int = 0, num_bytes: int = 0) -> None:
        super().add(kind, storage, num_bytes)
        if kind == "step begin" and self.trained:
            self.trace.add_operator(
                op=5, cost=100.0, left=False, replayable=True, inputs=self.parameters, outputs=[],
                output_bytes=[], writes=self.parameters, overwrites=[], memory=[], line=0,
                backward=True,
            )  # fmt: skip


@pytest.mark.debug_build
@pytest.mark.parametrize(
    ("trained", "kept", "moved_mib"),
    [
        (True, [], 12),  # all but the first, which has no room before it
        (True, [2], 8),  # somebody has its address
        (False, [], 0),  # a thread that is not inside the budget may be reading them
    ],
)
def test_roots_that_an_optimizer_writes_are_moved_together_once(
    trained: bool, kept: list[int], moved_mib: int
) -> None:
    program = Scattered(trained=trained)
    for number in kept:
        program.add("keep", program.parameters[number])
    for _ in range(8):
        program.step()
    extra, stats = run(program, 44, [])
    assert stats["moved_bytes"] == moved_mib * MIB
    assert stats["num_followed"] == 6
    assert run(program, 44, ["foresight"])[1]["moved_bytes"] == 0
    if trained:
        frozen = Scattered(trained=False)
        for _ in range(8):
            frozen.step()
        assert extra[-1] < 0.9 * run(frozen, 44, [])[0][-1]
