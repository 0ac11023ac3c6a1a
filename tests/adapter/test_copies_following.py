"""Schedules that copy, here to a mapped file, and load ahead: the bits of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import coop
from coop.profiles import LINKS

from .faults import same_bits
from .following import LOOPS, Convolutions, Loop, Transformer, train
from .harness import assert_identical
from .slices import debug_every
from .test_following import FailingPlacements, Interrupt, Trouble, budget_of
from .test_host_copies import cloned
from .test_host_copies import train as train_wide

pytestmark = pytest.mark.debug_build
SHARES = (0.8, 0.5)


@pytest.fixture(autouse=True)
def quick_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """These networks are small: a real link is too slow for them, and would not be used."""
    link = replace(
        LINKS["cpu"], out_bytes_per_second=1e11, in_bytes_per_second=1e11, latency_ns=10.0
    )
    monkeypatch.setitem(LINKS, "cpu", link)


def room(tmp_path: Path) -> dict[str, str]:
    return {"host": "16MiB", "host_dir": str(tmp_path)}


@pytest.mark.parametrize("name", debug_every(3, LOOPS))
def test_what_is_followed_is_bit_identical(name: str, tmp_path: Path) -> None:
    """Some steps leave the schedule while copies are under way."""
    make = LOOPS[name]
    expected = train(make).cloned()
    followed = []
    for share in SHARES:
        with budget_of(make, share, **room(tmp_path)) as session:
            outcome = train(make)
            assert session._engine.is_valid()
        assert_identical(expected, outcome.cloned())
        stats = session.stats()
        if stats.num_followed > 0:
            followed.append(stats.num_host_loads)
    assert followed
    assert min(followed) > 0


@pytest.mark.parametrize("make", debug_every(2, [Convolutions, Transformer]))
def test_an_allocation_that_fails_while_copies_are_followed_skips_that_batch(
    make: Callable[[], Loop], tmp_path: Path
) -> None:
    trouble = FailingPlacements(make, stride=23, options=room(tmp_path))
    trouble.check(0.5, num_runs=3)
    assert trouble.num_armed >= trouble.num_skipped > 5


@dataclass
class FailingCopies(Trouble):
    """One after the other; what cannot be copied is recomputed, and no batch is skipped."""

    next: int = 1
    num_failed: int = 0

    def arm(self, session: coop.Session, loop: Loop) -> None:
        session._engine.fail_copy(self.next)
        self.next += 3

    def disarm(self, session: coop.Session, loop: Loop) -> None:
        self.num_failed += session._engine.fail_copy(0) == 0


@pytest.mark.parametrize("make", debug_every(2, [Convolutions, Transformer]))
def test_a_copy_that_fails_while_it_is_followed_changes_no_bit(
    make: Callable[[], Loop], tmp_path: Path
) -> None:
    trouble = FailingCopies(make, options=room(tmp_path))
    trouble.check(0.5, num_runs=2)
    assert not trouble.skipped
    assert trouble.num_failed > 3


@pytest.mark.parametrize("make", debug_every(2, [Convolutions, Transformer]))
def test_an_interrupt_while_copies_are_followed_skips_that_batch(
    make: Callable[[], Loop], tmp_path: Path
) -> None:
    trouble = Interrupt(make, options=room(tmp_path))
    trouble.check(0.5, num_runs=3)
    assert trouble.num_skipped > 5


@pytest.mark.parametrize(("size", "is_followed"), [("5MiB", 1), ("4MiB", 1), ("2MiB", 0)])
def test_parameters_and_state_that_do_not_fit_stream(
    size: str, is_followed: int, tmp_path: Path
) -> None:
    """7.5 MiB with gradients, 1.5 MiB that stay; the optimizer updates one after the other."""
    expected = cloned(train_wide(num_steps=12))
    with coop.budget(size, device="cpu", **room(tmp_path)) as session:
        result = train_wide(num_steps=12)
        assert session._engine.is_valid()
    assert same_bits(expected, cloned(result))
    stats = session.stats()
    assert stats.num_followed >= 6 * is_followed
    assert stats.peak_bytes <= stats.budget_bytes


def test_a_budget_that_ends_while_copies_are_under_way(tmp_path: Path) -> None:
    """In the middle of a backward pass: what has not come back is brought back for good."""
    for layer in range(6):
        with budget_of(Transformer, 0.5, **room(tmp_path)) as session:
            loop = Transformer()
            for number in range(5):
                loop.step(number)
            trouble = Interrupt(Transformer)
            trouble.calls = iter([2 * layer])
            trouble.arm(session, loop)
            with pytest.raises(KeyboardInterrupt):
                loop.passes(5)
            trouble.disarm(session, loop)
            parameters = [p.detach() for p in loop.model.parameters()]
        assert all(p.isfinite().all() for p in parameters)
        plain = Transformer()
        for number in range(5):
            plain.step(number)
        for mine, expected in zip(parameters, plain.model.parameters(), strict=True):
            assert mine.equal(expected)
