"""One thread for torch, and the table of what ran, for docs/elsewhere.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .page import page
from .runs import ROWS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--elsewhere-page", type=Path, help="write the table of what ran to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--elsewhere-page", default=None)
    if path is not None:
        path.write_text(page(session.config.stash[ROWS]))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Programs this small gain nothing from threads, and lose all where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
