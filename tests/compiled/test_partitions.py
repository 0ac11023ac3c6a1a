"""A model compiled as a whole whose saved tensors cannot fit: less is saved, and that is said."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import coop
from tests.adapter.harness import AMPLE_BYTES, assert_identical, run_budgeted, run_plain
from tests.adapter.outcome import Outcome, collect

from .compiled_programs import WIDTH, Block, train

ROWS = 2048
MIB = 2**20


def whole(seed: int, backend: str, dropout: float, depth: int = 4) -> Outcome:
    torch._dynamo.reset()
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block(dropout=dropout) for _ in range(depth)))
    forward = torch.compile(model, backend=backend)
    return train(model, forward, rows=lambda step: ROWS)


def run_and_listen(run: Callable[[int], Outcome], budget_bytes: int) -> tuple[Outcome, list[str]]:
    """What it leaves, and what was said of shares."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outcome, stats = run_budgeted(run, budget_bytes)
    assert stats.peak_bytes <= budget_bytes
    return outcome, [str(w.message) for w in said if "a compiled graph" in str(w.message)]


def check(backend: str, dropout: float, shares: dict[int, list[str]]) -> None:
    run = functools.partial(whole, backend=backend, dropout=dropout)
    plain = run_plain(run)
    outcome, said = run_and_listen(run, AMPLE_BYTES)
    assert_identical(plain, outcome)
    assert said == []  # nothing is changed where it fits
    # Four blocks save 21 MiB.
    for budget_bytes, chosen in shares.items():
        outcome, said = run_and_listen(run, budget_bytes)
        assert len(said) == len(chosen)
        assert all(f"compiled {how}," in line for how, line in zip(chosen, said, strict=True))
        # In float32 on a CPU; not said of every graph.
        assert_identical(plain, outcome)


def test_less_is_saved_where_it_cannot_fit() -> None:
    check("aot_eager", 0.0, {16 * MIB: ["with activation_memory_budget=0.25"]})


def test_what_fits_is_measured_and_compiled_once_more() -> None:
    check(
        "aot_eager",
        0.0,
        {
            21 * MIB: [
                "with activation_memory_budget=0.5",
                "once more with activation_memory_budget=0.95",
            ],
            29 * MIB: ["with activation_memory_budget=0.75", "once more with all"],
        },
    )


def test_the_states_of_the_optimizer_are_known_after_the_first_step() -> None:
    """All would fit into the first step, and not into the second."""

    def run(seed: int) -> Outcome:
        torch._dynamo.reset()
        torch.manual_seed(seed)
        layers = [nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]
        model = nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        forward = torch.compile(model, backend="aot_eager")
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = forward(torch.randn(1024, 512)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return collect(losses, modules=[model], optimizers=[optimizer])

    plain = run_plain(run)
    for mib, chosen in {60: ["0.95"], 48: ["0.75", "0.45"]}.items():
        outcome, said = run_and_listen(run, mib * MIB)
        assert_identical(plain, outcome)
        assert len(said) == len(chosen)
        assert "compiled once more" in said[-1]
        for share, line in zip(chosen, said, strict=True):
            assert f"activation_memory_budget={share}," in line


def test_another_budget_is_another_choice() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    forward = torch.compile(model, backend="aot_eager")

    def run(_: int) -> Outcome:
        torch.manual_seed(0)
        loss = forward(torch.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        return collect([loss.detach()])

    for budget_bytes, share in ((20 * MIB, 0.5), (20 * MIB, None), (16 * MIB, 0.25)):
        _, said = run_and_listen(run, budget_bytes)
        assert [f"activation_memory_budget={share}," in line for line in said] == (
            [] if share is None else [True]
        )


def test_growth_is_counted_as_if_nothing_had_left() -> None:
    with coop.budget(4 * MIB, device="cpu", small_bytes=0, quiet_after=None) as session:
        held = [torch.zeros(MIB // 4)]
        block_bytes = session.stats().held_bytes
        session._engine.watch_growth()
        held += [held[0].cos() for _ in range(6)]
        assert session.stats().num_evictions > 0
        assert session._engine.growth_bytes() == 6 * block_bytes
        session._engine.watch_growth()
        assert session._engine.growth_bytes() == 0


@pytest.mark.slow
def test_random_numbers_are_not_drawn_again() -> None:
    """The partitioner itself would, at 0.25: the gradients would be those of another dropout."""
    check("aot_eager", 0.1, {20 * MIB: ["with activation_memory_budget=0.5"]})
    run = functools.partial(whole, backend="aot_eager", dropout=0.1)
    with (
        pytest.warns(UserWarning, match="compiled with activation_memory_budget=0.5,"),
        pytest.raises(coop.OutOfBudgetError),
    ):
        run_budgeted(run, 16 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_less_is_saved_by_inductor_where_it_cannot_fit(dropout: float) -> None:
    check("inductor", dropout, {24 * MIB: ["with activation_memory_budget=0.75"]})
