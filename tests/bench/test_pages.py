"""docs/results is what `python -m benchmarks.harness.pages` makes of the committed results."""

from pathlib import Path

import pytest

from benchmarks.harness.pages import PAGES, pages

MADE = pages()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_every_page_is_as_it_is_generated(path: Path) -> None:
    assert path.read_text() == MADE[path]


def test_no_page_says_that_it_is_generated_and_is_not() -> None:
    said = [path for path in PAGES.glob("*.md") if "Generated from" in path.read_text()]
    assert sorted(said) == sorted(MADE)
