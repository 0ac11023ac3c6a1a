"""What a person is told when something does not fit: the cause, and three things to try."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import coop

KIB = 1024


def kept_tensors() -> None:
    """Most of it is kept."""
    for _ in range(6):
        kept.append(coop.keep(torch.ones(100 * KIB, dtype=torch.uint8)))
    torch.zeros(600 * KIB, dtype=torch.uint8)


def roots() -> None:
    """Most of it is a parameter and its gradient."""
    kept.append(torch.nn.Parameter(torch.zeros(300 * KIB // 4)))
    kept[0].sum().backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD([kept[0]], lr=0.1).step()
    torch.zeros(600 * KIB, dtype=torch.uint8)


def one_operator() -> None:
    """All of it is needed at once."""
    x = torch.ones(300 * KIB, dtype=torch.uint8)
    torch.cat([x, x, x])


kept: list[torch.Tensor] = []


@pytest.mark.parametrize(
    ("program", "wanted", "advice"),
    [
        (
            kept_tensors,
            "aten::zeros wanted 600.00 KiB (614400 bytes)",
            "less that is kept (600.38 KiB)",
        ),
        (roots, "aten::zeros wanted 600.00 KiB (614400 bytes)", "fewer roots (616.12 KiB)"),
        (
            one_operator,
            "aten::cat wanted 900.00 KiB (921600 bytes)",
            "smaller operators: this one alone needs 1.17 MiB at once;",
        ),
    ],
)
def test_the_advice_is_about_what_is_in_the_way(
    program: Callable[[], None], wanted: str, advice: str
) -> None:
    kept.clear()
    with coop.budget("1MiB"), pytest.raises(coop.OutOfBudgetError) as caught:
        program()
    kept.clear()
    message, shortage = str(caught.value), caught.value.shortage
    assert message.startswith(f"coop: {wanted}, but at most ")
    assert f"\n     (3) {advice}" in message
    # The number may be copied, and is enough.
    enough = shortage["sufficient_budget_bytes"]
    assert f"Try: (1) a budget of {enough}, " in message
    with coop.budget(enough):
        program()
    kept.clear()


def test_what_is_kept_and_why_is_listed() -> None:
    with coop.budget("1MiB"), pytest.raises(coop.OutOfBudgetError) as caught:
        kept_tensors()
    kept.clear()
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
