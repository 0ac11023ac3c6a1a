"""What a person is told when something does not fit: the cause, and what helps.

Every advice is followed, and then it fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import cross_entropy

import coop

KIB = 1024
kept: list[torch.Tensor] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    kept.clear()


def kept_tensors(follow: bool) -> None:
    """Most of it is kept."""
    for _ in range(6):
        kept.append(coop.keep(torch.ones(100 * KIB, dtype=torch.uint8)))
    if follow:
        for each in kept:
            coop.unkeep(each)
    torch.zeros(600 * KIB, dtype=torch.uint8)


def optimizer_state(follow: bool) -> None:
    """Most of it is AdamW's."""
    weight = torch.nn.Parameter(torch.zeros(100 * KIB // 4))
    kind = torch.optim.SGD if follow else torch.optim.AdamW
    optimizer = kind([weight], lr=0.1)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    torch.zeros(800 * KIB, dtype=torch.uint8)


def gradients(follow: bool) -> None:
    """Half of it is the gradient of the step before."""
    layer = torch.nn.Linear(250, KIB // 4)  # 250 KiB
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(250)).sum().backward()
    optimizer.step()
    if follow:
        optimizer.zero_grad()
    torch.zeros(700 * KIB, dtype=torch.uint8)


def parameters(follow: bool) -> None:
    """Nearly all of it is weights."""
    with torch.no_grad():
        model = torch.nn.Linear(600, KIB // 4, dtype=torch.bfloat16 if follow else None)  # 600 KiB
        torch.zeros(500 * KIB, dtype=torch.uint8)
    assert model.weight.numel()


def loss(follow: bool) -> None:
    """Logits and the loss of all rows at once."""
    weight = torch.ones(2, 2 * KIB, requires_grad=True)
    for rows in torch.ones(64, 2).split(8 if follow else 64):
        cross_entropy(rows @ weight, torch.zeros(len(rows), dtype=torch.long)).backward()  # type: ignore[no-untyped-call]


def layers(follow: float) -> None:
    """Activations of a large batch; `follow` is a share of it."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    inputs = torch.ones(int(2200 * (follow or 1)), 64)
    with torch.no_grad():
        model(inputs)


PROGRAMS: dict[str, Callable[[bool], None]] = {
    "less that is kept (600.38 KiB)": kept_tensors,
    "an optimizer with less state (200.00 KiB now)": optimizer_state,
    "optimizer.zero_grad() before this point, not after it: the gradients of the last step take "
    "251.00 KiB": gradients,
    "fewer roots (": parameters,
    "logits and loss in pieces, some rows at a time": loss,
}


@pytest.mark.parametrize(("advice", "program"), PROGRAMS.items())
def test_an_advice_helps(advice: str, program: Callable[[bool], None]) -> None:
    with coop.budget("1MiB"), pytest.raises(coop.OutOfBudgetError) as caught:
        program(False)
    kept.clear()
    message, shortage = str(caught.value), caught.value.shortage
    assert re.search(rf"\n     \(\d\) {re.escape(advice)}", message), message
    # The number may be copied, and is enough.
    enough = shortage["sufficient_budget_bytes"]
    assert f"Try: (1) a budget of {enough}, " in message
    with coop.budget(enough):
        if program is not loss:  # what comes after it wants more
            program(False)
    kept.clear()
    with coop.budget("1MiB"):
        program(True)


def test_the_share_of_the_batch_fits() -> None:
    with coop.budget("1MiB"), pytest.raises(coop.OutOfBudgetError) as caught:
        layers(0)
    share = re.search(r"a smaller batch or sequence, at most about (\d+)% of", str(caught.value))
    assert share is not None, str(caught.value)
    assert 50 <= int(share[1]) < 100
    with coop.budget("1MiB"):
        layers(int(share[1]) / 100)


def test_what_helps_most_comes_first_and_what_cannot_help_is_left_out() -> None:
    with coop.budget("1MiB"), pytest.raises(coop.OutOfBudgetError) as caught:
        kept_tensors(False)
    tries = str(caught.value).partition("Try: ")[2].split("\n")
    assert [line.strip()[4:16] for line in tries] == [
        "a budget of ",
        "less that is",
        "a smaller ba",
    ]


def test_a_budget_that_is_not_there_is_not_advised() -> None:
    with coop.budget("1MiB") as session:
        session._most_bytes = 2**20
        with pytest.raises(coop.OutOfBudgetError) as caught:
            layers(0)
    assert "Try: (1) a smaller batch or sequence" in str(caught.value)
    assert "a budget of" not in str(caught.value).partition("Try: ")[2]


class Model(torch.nn.Module):
    """A part in a part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList([torch.nn.Linear(300, KIB // 4)])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner[0](rows)
        return hidden


def test_the_largest_tensors_have_their_names_and_lines() -> None:
    with coop.budget("1900KiB"):
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(8, 300)).sum().backward()
        optimizer.step()
        batch = {"rows": torch.ones(170, 300)}
        with pytest.raises(coop.OutOfBudgetError) as caught:
            model(batch["rows"].repeat(2, 1))
    lines = str(caught.value).partition("The largest of it:\n")[2].splitlines()[:5]
    here = r"\(tests/cli/test_out_of_budget\.py:\d+ in \w+\)"
    patterns = (
        rf"398\.50 KiB  rows {here}, in use by this operator",
        r"300\.06 KiB  inner\.0\.weight of Model, in use by this operator",
        r"300\.06 KiB  the gradient of inner\.0\.weight of Model, a root",
        r"300\.06 KiB  AdamW's exp_avg_sq of inner\.0\.weight of Model, a root",
        r"300\.06 KiB  AdamW's exp_avg of inner\.0\.weight of Model, a root",
    )
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line.strip()), "\n".join(lines)


def test_with_a_recording_lines_are_known_where_names_are_not() -> None:
    with coop.budget("1MiB", events=True), pytest.raises(coop.OutOfBudgetError) as caught:
        torch.cat([torch.ones(90_000)] * 3)
    assert re.search(
        r"351\.62 KiB  made at tests/cli/test_out_of_budget\.py:\d+ in test_with_a_recording_lines",
        str(caught.value),
    ), str(caught.value)


def test_looking_for_names_keeps_nothing_alive() -> None:
    with coop.budget("1MiB") as session:
        x = coop.keep(torch.ones(100 * KIB, dtype=torch.uint8))
        with pytest.raises(coop.OutOfBudgetError):
            torch.zeros(2**21, dtype=torch.uint8)
        held = session.stats().held_bytes
        assert x.numel()
        del x
        assert session.stats().held_bytes <= held - 100 * KIB


def test_what_is_kept_and_why_is_listed() -> None:
    with coop.budget("1MiB"), pytest.raises(coop.OutOfBudgetError) as caught:
        kept_tensors(False)
    assert "\nKept: 600.38 KiB: coop.keep.\n" in str(caught.value)


def test_room_without_its_header_is_not_offered() -> None:
    """It said that 1032192 bytes were wanted, and that 1032192 could be freed."""
    with coop.budget("1MiB"), pytest.raises(coop.OutOfBudgetError) as caught:
        torch.zeros(1032192 // 4)
    shortage = caught.value.shortage
    assert (shortage["wanted_bytes"], shortage["largest_window_bytes"]) == (1032192, 1032192 - 64)
    # Both bounds are the same when nothing lies in the way.
    assert "The smallest budget that can pass this point: 1.00 MiB (1048640 bytes).\n" in str(
        caught.value
    )
