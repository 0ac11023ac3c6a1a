"""Steps that follow a schedule leave the bits that plain PyTorch leaves (Rule 16)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coop

from .faults import restore_statistics, saved_statistics
from .following import LOOPS, NUM_STEPS, Block, Convolutions, Loop, Perceptron, Transformer, train
from .harness import assert_identical, peak_bytes
from .outcome import Outcome
from .slices import debug_every

SHARES = (0.9, 0.7, 0.5)  # of what a loop holds at most
SMALL_BYTES = 1024  # so that nearly everything may leave

pytestmark = pytest.mark.debug_build


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """Garbage is collected often here: what torch and pytest have made by now is none."""
    train(Transformer, 1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@cache
def peak_of(make: Callable[[], Loop]) -> int:
    return peak_bytes(lambda _: train(make, 2))


def budget_of(
    make: Callable[[], Loop], share: float, **options: Any
) -> AbstractContextManager[coop.Session]:
    budget = int(share * peak_of(make))
    return coop.budget(budget, device="cpu", small_bytes=SMALL_BYTES, **options)


@pytest.mark.parametrize("name", debug_every(3, LOOPS))
def test_what_is_followed_is_bit_identical(name: str) -> None:
    """Some steps leave the schedule: those that change their mind, and where lengths alternate."""
    make = LOOPS[name]
    expected = train(make).cloned()
    num_followed = []
    for share in SHARES:
        with budget_of(make, share) as session:
            outcome = train(make)
            assert session._engine.is_valid()
        assert_identical(expected, outcome.cloned())
        stats = session.stats()
        num_followed.append(stats.num_followed)
        assert stats.num_followed < NUM_STEPS
    assert sum(number > 0 for number in num_followed) >= 2, num_followed


class Scattered(Transformer):
    """Its parameters have room between them, where others lay until the first step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        others: list[nn.Module] = []
        for _ in range(6):
            layers.append(Block(32))
            others.append(nn.Linear(32, 96))
        Loop.__init__(self, nn.Sequential(*layers))


def test_parameters_move_when_a_schedule_is_taken_and_only_if_nobody_has_their_address() -> None:
    expected = train(Scattered).cloned()
    with budget_of(Scattered, 0.5) as session:
        loop = Scattered()
        *parameters, known = [p for p in loop.model.parameters() if p.nbytes > SMALL_BYTES]
        known_at = known.data_ptr()

        def addresses() -> list[int]:
            return [torch._C.TensorBase.data_ptr(parameter) for parameter in parameters]

        moved_after = []
        for number in range(NUM_STEPS):
            before, num_schedules = addresses(), session.stats().num_schedules
            loop.step(number)
            if addresses() != before:
                moved_after.append(number)
                assert session.stats().num_schedules == num_schedules + 1
        assert moved_after == [2]  # the first that came again
        assert known.data_ptr() == known_at
        assert session._engine.is_valid()
        actual = loop.outcome().cloned()
    assert_identical(expected, actual)


# --- schedules that are made while training goes on ----------------------------------------------

MOST_STEPS = 5000  # by then one is made, however busy the machine is


def in_background(share: float) -> AbstractContextManager[coop.Session]:
    budget = int(share * peak_of(Transformer))
    return coop.budget(budget, device="cpu", small_bytes=SMALL_BYTES, background=True)


def test_a_schedule_that_was_made_meanwhile_is_followed_bit_by_bit() -> None:
    with in_background(0.6) as session:
        loop = Transformer()
        num_steps = 0
        while session.stats().num_followed < 3 and num_steps < MOST_STEPS:
            loop.step(num_steps)
            num_steps += 1
        assert session.stats().num_followed == 3
        assert session._engine.is_valid()
        actual = loop.outcome().cloned()
    assert_identical(train(Transformer, num_steps).cloned(), actual)


def test_a_budget_that_ends_does_not_wait_for_a_schedule_to_be_made() -> None:
    """The second step is the first that one is made for."""
    for num_steps in (2, 3):
        with in_background(0.6):
            actual = train(Transformer, num_steps).cloned()
        assert_identical(train(Transformer, num_steps).cloned(), actual)


def test_a_process_that_is_forked_while_a_schedule_is_made_ends() -> None:
    with in_background(0.6) as session:
        train(Transformer, 2)
        child = os.fork()
        if child == 0:
            session._engine.close()
            del session
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)


# --- what goes wrong while a schedule is followed -----------------------------------------------


@dataclass
class Trouble:
    """Ends passes in their middle, each time at another place."""

    make: Callable[[], Loop]
    num_skipped: int = 0  # steps whose passes did not end, in all runs
    skipped: set[int] = field(default_factory=set)  # in this run
    options: dict[str, Any] = field(default_factory=dict)  # of the budget

    def arm(self, session: coop.Session, loop: Loop) -> None:
        """The passes that come now follow a schedule."""
        raise NotImplementedError

    def disarm(self, session: coop.Session, loop: Loop) -> None:
        """They are over."""

    def inside(self, share: float, num_steps: int) -> Outcome:
        with budget_of(self.make, share, **self.options) as session:
            loop = self.make()
            num_followed = 0
            for number in range(num_steps):
                statistics = saved_statistics(loop.model)
                before, num_followed = num_followed, session.stats().num_followed
                # As the last step followed one to its end, so does this, for as long as it goes.
                if num_followed > before:
                    self.arm(session, loop)
                try:
                    torch.manual_seed(number)
                    loop.optimizer.zero_grad(set_to_none=True)
                    loop.passes(number)
                except (coop.OutOfBudgetError, KeyboardInterrupt):
                    self.skipped.add(number)
                self.disarm(session, loop)
                assert session._engine.is_valid()
                if number in self.skipped:
                    loop.optimizer.zero_grad(set_to_none=True)
                    gc.collect()
                    restore_statistics(loop.model, statistics)
                else:
                    loop.optimizer.step()
            torch.manual_seed(num_steps)  # it may have stopped anywhere
            outcome = loop.outcome()
        return outcome.cloned()

    def plain(self, num_steps: int) -> Outcome:
        """Without the steps that did not end inside."""
        loop = self.make()
        for number in range(num_steps):
            torch.manual_seed(number)
            if number in self.skipped:
                loop.optimizer.zero_grad(set_to_none=True)
            else:
                loop.step(number)
        torch.manual_seed(num_steps)
        return loop.outcome()

    def check(self, share: float, num_runs: int, num_steps: int = 16) -> None:
        for _ in range(num_runs):
            self.skipped = set()
            actual = self.inside(share, num_steps)
            assert_identical(self.plain(num_steps), actual)
            self.num_skipped += len(self.skipped)


@dataclass
class FailingPlacements(Trouble):
    stride: int = 1
    next: int = 1
    num_armed: int = 0

    def arm(self, session: coop.Session, loop: Loop) -> None:
        session._engine.fail_placement(self.next)
        self.next += self.stride
        self.num_armed += 1

    def disarm(self, session: coop.Session, loop: Loop) -> None:
        session._engine.fail_placement(0)


@pytest.mark.parametrize("share", [pytest.param(0.7, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize(
    ("make", "stride", "num_runs"),
    [
        (Transformer, 31, 4),
        (Convolutions, 7, 6),
        pytest.param(Convolutions, 1, 60, marks=pytest.mark.slow),
    ],
)
def test_an_allocation_that_fails_while_a_schedule_is_followed_skips_that_batch(
    make: Callable[[], Loop], stride: int, num_runs: int, share: float
) -> None:
    trouble = FailingPlacements(make, stride=stride)
    trouble.check(share, num_runs)
    assert trouble.num_armed >= trouble.num_skipped > 10


@dataclass
class Interrupt(Trouble):
    """A hook of a layer raises: in the forward or in the backward pass, from the first layer on."""

    calls: Iterator[int] = field(default_factory=count)
    handle: torch.utils.hooks.RemovableHandle | None = None

    def arm(self, session: coop.Session, loop: Loop) -> None:
        number = next(self.calls)
        layers = list(loop.model.children())
        layer = layers[number // 2 % len(layers)]
        hook = self.interrupt if number % 2 else self.interrupt_later
        self.handle = layer.register_forward_hook(hook)

    def interrupt(self, *_: object) -> None:
        raise KeyboardInterrupt

    def interrupt_later(self, _layer: nn.Module, _inputs: object, output: Tensor) -> None:
        output.register_hook(self.interrupt)

    def disarm(self, session: coop.Session, loop: Loop) -> None:
        if self.handle is not None:
            self.handle.remove()


@pytest.mark.parametrize("make", debug_every(2, [Convolutions, Transformer]))
def test_an_interrupt_while_a_schedule_is_followed_skips_that_batch(
    make: Callable[[], Loop],
) -> None:
    trouble = Interrupt(make)
    trouble.check(0.6, num_runs=4)
    assert trouble.num_skipped > 10


class Doubled(nn.Module):
    """An operator written in Python, so that it can tell when it is run again."""

    armed = False
    num_interrupted = 0

    @staticmethod
    def kernel(x: Tensor) -> Tensor:
        if Doubled.armed:
            Doubled.armed = False
            Doubled.num_interrupted += 1
            raise KeyboardInterrupt
        return x * 2

    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = torch.ops.coop_following.doubled(x)
        return doubled


LIBRARY = torch.library.Library("coop_following", "DEF")
LIBRARY.define("doubled(Tensor x) -> Tensor")
LIBRARY.impl("doubled", Doubled.kernel, "CPU")
torch.library.register_autograd(
    "coop_following::doubled", lambda _, gradient: gradient * 2, lib=LIBRARY
)


class Doubling(Perceptron):
    """What it makes is wide, cheap, and saved by the layer that follows."""

    def __init__(self) -> None:
        super().__init__()
        for number, layer in self.model.named_children():
            if isinstance(layer, nn.GELU):
                setattr(self.model, number, nn.Sequential(layer, Doubled()))


@dataclass
class InterruptedReplay(Trouble):
    """Once the backward pass has begun, the operator runs only to be replayed."""

    handle: torch.utils.hooks.RemovableHandle | None = None

    def arm(self, session: coop.Session, loop: Loop) -> None:
        last = list(loop.model.children())[-1]
        self.handle = last.register_full_backward_pre_hook(self.begin)

    def begin(self, *_: object) -> None:
        Doubled.armed = True

    def disarm(self, session: coop.Session, loop: Loop) -> None:
        Doubled.armed = False
        if self.handle is not None:
            self.handle.remove()


@pytest.mark.filterwarnings("ignore::coop.SlowStepWarning")
def test_an_interrupt_in_a_replay_that_a_schedule_wants_skips_that_batch() -> None:
    coop.allow_replay("coop_following::doubled")
    trouble = InterruptedReplay(Doubling)
    trouble.check(0.6, num_runs=2)
    assert trouble.num_skipped == Doubled.num_interrupted > 4
