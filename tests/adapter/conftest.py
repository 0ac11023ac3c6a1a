"""One thread for torch, and the smallest budgets found, printed after the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

MIB = 2**20


class SmallestBudgets:
    """What the bisections found: program -> policy -> (smallest budget, peak without a budget)."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, tuple[int, int]]] = {}

    def note(self, program: str, policy: str, budget_bytes: int, peak_bytes: int) -> None:
        self.found.setdefault(program, {})[policy] = (budget_bytes, peak_bytes)
        print(
            f"{program}, {policy}: smallest budget {budget_bytes} bytes, "
            f"{budget_bytes / peak_bytes:.1%} of its peak of {peak_bytes} bytes"
        )

    def table(self) -> Iterator[str]:
        yield f"{'':48} {'peak':>10} {'coop':>7}{'dtr':>8}{'dte':>8}"
        for program, by_policy in self.found.items():
            peak_bytes = max(peak for _, peak in by_policy.values())
            cells = (
                f"{by_policy[policy][0] / by_policy[policy][1]:8.0%}" if policy in by_policy else ""
                for policy in ("coop", "dtr", "dte")
            )
            yield f"{program:48} {peak_bytes / MIB:6.2f} MiB " + "".join(f"{c:>8}" for c in cells)


SMALLEST = pytest.StashKey[SmallestBudgets]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SMALLEST] = SmallestBudgets()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    smallest = terminalreporter.config.stash[SMALLEST]
    if smallest.found:
        terminalreporter.section("smallest budgets, as a share of the peak")
        for line in smallest.table():
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def smallest_budgets(pytestconfig: pytest.Config) -> SmallestBudgets:
    return pytestconfig.stash[SMALLEST]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Programs this small gain nothing from threads, and lose all where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
