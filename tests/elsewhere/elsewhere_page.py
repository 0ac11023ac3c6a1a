"""docs/elsewhere.md."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

import torch

from .runs import Row

HEAD = """# Programs in the manner of others

`make test-elsewhere` writes this page. Each program is small and was written here, in the manner of
code that nobody here wrote: another library's API, or another training style. It runs twice without
a budget, then in two budgets: the smallest that it fits (tight, to within 20%), and one about
halfway from there to its peak (moderate). Losses, gradients, parameters, buffers, optimizer state,
outputs and the generator's state are compared bit for bit; a difference fails the test. Programs of
two processes run in 90% of each process's peak, and in the smallest of 85%, 80% and 75% that both
fit; the table has the first process's figures.

timm is installed without torchvision, whose build on PyPI needs another torch: while it is imported
it finds names in torchvision's place, and what is trained uses none of them
(`tests/elsewhere/stand_in.py`).

Made with torch {torch} and Python {python} on {date}.

| program | peak, KiB | moderate | evictions | replays | tight | evictions | replays |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def page(rows: Sequence[Row], others: Mapping[str, str]) -> str:
    """Two rows of results are one line of the table."""
    by_program: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_program.setdefault(row.program, {})[row.budget] = row
    lines = [
        f"| {program.replace('_', ' ')} | {both['tight'].peak_bytes / 1024:,.0f} "
        + "".join(
            f"| {row.budget_bytes / row.peak_bytes:.0%} | {row.num_evictions:,} "
            f"| {row.num_replays:,} "
            for row in (both["moderate"], both["tight"])
        )
        + "|"
        for program, both in sorted(by_program.items())
    ]
    evictions = sum(row.num_evictions for row in rows)
    replays = sum(row.num_replays for row in rows)
    failed = list(others.values()).count("failed")
    foot = (
        f"\n{len(by_program)} programs, {len(rows)} runs inside a budget, {evictions:,} evictions, "
        f"{replays:,} replays: identical. {failed} programs failed.\n"
    )
    lines += [f"| {n.replace('_', ' ')} | {what} |  |  |  |  |  |  |" for n, what in others.items()]
    head = HEAD.format(
        torch=torch.__version__,
        python=platform.python_version(),
        date=datetime.now(timezone.utc).date(),
    )
    return head + "".join(f"{line}\n" for line in lines) + foot
