"""Which of a product of parameters `make test` runs; the rest is slow, for `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["covering_pairs", "debug_every", "first", "quick_every"]


def covering_pairs(
    names: Iterable[str],
    others: Sequence[Any],
    *,
    every: int = 1,
    debug: str = "",
    debug_every: int = 1,
) -> list[Any]:
    """All pairs. Each name is quick with one of the others, in turn, so every one of both is met.

    Or every second name, say. Pairs with the other named `debug` also run on the debug build; those
    that are quick, of every `debug_every`th name.
    """
    slow = pytest.mark.slow
    pairs = []
    for number, name in enumerate(names):
        for index, other in enumerate(others):
            quick = number % len(others) == index and number % every == 0
            checked = other == debug and (not quick or number % debug_every == 0)
            marks = [*([] if quick else [slow]), *([pytest.mark.debug_build] if checked else [])]
            pairs.append(pytest.param(name, other, marks=marks, id=f"{name}-{other}"))
    return pairs


def quick_every(number: int, parameters: Iterable[Any], *, start: int = 0) -> list[Any]:
    """All, of which every `number`th is quick, the one at `start` among them."""
    return [
        pytest.param(each, marks=[] if index % number == start else [pytest.mark.slow])
        for index, each in enumerate(parameters)
    ]


def debug_every(number: int, parameters: Iterable[Any], *, every: int = 1) -> list[Any]:
    """All, of which every `number`th runs on the debug build too, and the others by
    `make test-all`. Or every second is quick at all, say: `number` is a multiple of `every`."""
    debug, rest, slow = pytest.mark.debug_build, pytest.mark.slow_on_debug, pytest.mark.slow
    return [
        pytest.param(
            each,
            marks=[debug, *([rest] if index % number else []), *([slow] if index % every else [])],
        )
        for index, each in enumerate(parameters)
    ]


def first(count: int, parameters: Sequence[Any]) -> list[Any]:
    """All, of which the first `count` are quick."""
    return [
        *parameters[:count],
        *(pytest.param(each, marks=pytest.mark.slow) for each in parameters[count:]),
    ]
