"""Programs that need torch alone are the same bits in two budgets."""

from __future__ import annotations

import pytest

from .loops import LOOPS
from .runs import ROWS, check
from .torch_apis import APIS

PROGRAMS = {**LOOPS, **APIS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_same_bits_in_two_budgets(name: str, pytestconfig: pytest.Config) -> None:
    pytestconfig.stash[ROWS] += check(name, PROGRAMS[name])
