"""Quiet steps in the engine: the same bits, whether a step fits as expected or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import coop

from .harness import AMPLE_BYTES, reference, rounded
from .identity import assert_identical
from .outcome import Outcome
from .programs import PROGRAMS
from .slices import debug_every

KIB = 1024
pytestmark = pytest.mark.debug_build


def run_quiet(name: str, budget_bytes: int) -> tuple[Outcome, coop.Stats]:
    """The program, not recorded from its first operator on."""
    with coop.budget(budget_bytes, quiet_after=1, small_bytes=0) as session:
        session._engine.end_step(True)
        outcome = PROGRAMS[name](0)
    return outcome.cloned(), session.stats()


@pytest.mark.parametrize("name", debug_every(8, PROGRAMS, every=2))
def test_a_program_that_is_not_recorded_gives_the_same_bits(name: str) -> None:
    expected = reference(PROGRAMS[name])
    outcome, stats = run_quiet(name, AMPLE_BYTES)
    assert_identical(expected.outcome, outcome)
    assert stats.num_saves == 0
    for share in (0.9, 0.8):
        outcome, stats = run_quiet(name, rounded(share * expected.peak_bytes))
        assert_identical(expected.outcome, outcome)
        assert stats.num_saves > 0


def batches(*rows: int) -> Iterator[Tensor]:
    for number, count in enumerate(rows):
        yield torch.randn(count, 64, generator=torch.Generator().manual_seed(number))


def train(data: Iterator[Tensor], after: Callable[[], None] = lambda: None) -> Iterator[Tensor]:
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(6)
        for layer in (nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Dropout(0.1))
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        after()
        yield loss.detach().clone()
    yield from (parameter.detach().clone() for parameter in model.parameters())


def test_steps_that_fit_become_quiet_and_a_larger_one_is_saved() -> None:
    rows = (32, 32, 32, 32, 1024, 1024, 32)
    seen: list[coop.Stats] = []
    with coop.budget(2048 * KIB, quiet_after=2, small_bytes=0) as session:
        inside = list(train(batches(*rows), lambda: seen.append(session.stats())))
    assert [stats.num_saves > 0 for stats in seen] == [False] * 4 + [True] * 3
    assert seen[4].num_saves == seen[6].num_saves
    assert seen[5].num_replays > seen[4].num_replays
    assert seen[-1].peak_bytes <= 2048 * KIB
    for actual, expected in zip(inside, train(batches(*rows)), strict=True):
        assert torch.equal(actual, expected)


def test_there_are_no_records_in_a_quiet_step() -> None:
    with coop.budget(2048 * KIB, quiet_after=1, small_bytes=0) as session:
        a = torch.ones(64, 64)
        kept = [a + 1]
        assert session.stats().num_recipes == 2
        session._engine.end_step(True)
        kept += [a + 2, a @ a, torch.dropout(a, 0.5, train=True)]
        kept[2].relu_()
        assert session.stats().num_recipes == 2
    assert torch.equal(kept[1], torch.full((64, 64), 3.0))


def test_what_reads_records_gets_them() -> None:
    with coop.budget(2048 * KIB, quiet_after=1, small_bytes=0, events=True) as session:
        session._engine.end_step(True)
        kept = torch.ones(64, 64) + 1
        assert session.stats().num_recipes == 2
    assert float(kept.sum()) == 2 * 64 * 64


def test_a_gradient_is_not_saved() -> None:
    with coop.budget(2048 * KIB, quiet_after=1, small_bytes=0) as session:
        session._engine.end_step(True)
        weight = torch.ones(64, 64).requires_grad_()
        output = weight * 2
        output.sum().backward()
        assert weight.grad is not None
        assert not coop.evict(weight.grad)
        assert not coop.evict(weight)
        assert coop.evict(output)
        assert session.stats().num_saves == 1
    assert torch.equal(output, torch.full((64, 64), 2.0))


def test_a_number_of_steps_is_not_negative() -> None:
    with pytest.raises(ValueError, match="quiet_after is a number of steps"):
        coop.budget(2048 * KIB, quiet_after=-1).__enter__()
