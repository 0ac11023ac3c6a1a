"""Which of a product of parameters `make test` runs; the rest is slow, for `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["covering_pairs", "first"]


def covering_pairs(
    names: Iterable[str], others: Sequence[Any], *, every: int = 1, debug: str = ""
) -> list[Any]:
    """All pairs. Each name is quick with one of the others, in turn, so every one of both is met.

    Or every second name, say. Pairs with the other named `debug` also run on the debug build.
    """
    slow = pytest.mark.slow
    return [
        pytest.param(
            name,
            other,
            marks=[
                *([] if number % len(others) == index and number % every == 0 else [slow]),
                *([pytest.mark.debug_build] if other == debug else []),
            ],
            id=f"{name}-{other}",
        )
        for number, name in enumerate(names)
        for index, other in enumerate(others)
    ]


def first(count: int, parameters: Sequence[Any]) -> list[Any]:
    """All, of which the first `count` are quick."""
    return [
        *parameters[:count],
        *(pytest.param(each, marks=pytest.mark.slow) for each in parameters[count:]),
    ]
