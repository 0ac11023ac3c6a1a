"""Programs that train through packages that `make test` does not install."""

from __future__ import annotations

import pytest

from .heavy import HEAVY, IMPORTS
from .runs import ROWS, check
from .stand_in import import_package


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_a_program_is_the_same_bits_in_two_budgets(name: str, pytestconfig: pytest.Config) -> None:
    for module in IMPORTS[name]:
        try:
            import_package(module)
        except ImportError as error:  # also of something that it needs
            pytest.skip(f"{module} cannot be imported: {error}")
    pytestconfig.stash[ROWS] += check(name, HEAVY[name])
