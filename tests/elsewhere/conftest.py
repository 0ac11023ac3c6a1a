"""One thread for torch, and the table of what ran, for docs/elsewhere.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from .elsewhere_page import page
from .runs import OTHERS, ROWS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--elsewhere-page", type=Path, help="write the table of what ran to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []
    config.stash[OTHERS] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """What has no row is named too."""
    report = yield
    if report.outcome != "passed":
        name = item.name.partition("[")[2].rstrip("]")
        item.config.stash[OTHERS][name] = report.outcome
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--elsewhere-page", default=None)
    if path is not None:
        path.write_text(page(session.config.stash[ROWS], session.config.stash[OTHERS]))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Programs this small gain nothing from threads, and lose all where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
