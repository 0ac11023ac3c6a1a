"""docs/evicted-arguments.md, from what a survey found."""

from __future__ import annotations

import platform
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import torch

from tests.surveys import Entry

HEAD = """# Evicted arguments

Written by `make test-evicted-arguments`; do not edit.

Everything of torch's Python interface that takes tensors, as far as its own lists say what that is,
is called on the CPU with *every argument evicted first*, small tensors too, and once without a
budget; results, gradients and what was written are compared bit by bit.

Made with torch {torch} and Python {python} on {date}.

"""
COLUMNS = (
    "from",
    "names",
    "with a call that torch accepts",
    "calls",
    "the same bits",
    "refused by torch both times",
    "varies in plain torch",
    "left out (too slow)",
    "tensors given",
    "evicted when the call began",
    "findings",
)

SOURCES = {
    "written": "written out (`tests/evicted/written.py`): NumPy, DLPack, files, constructors, ...",
    "database": "operators (`op_db`): as functions with gradients, methods, in place",
    "module": "modules (`module_db`): forward and backward, saving, copying, converting",
    "optimizer": "optimizers (`optim_db`): the first and the second step",
    "public": "all that `torch.overrides` lists, on tensors of seven kinds",
}
FOUND = ("evicted", "error", "wrong", "crash")

NOTES = """
A tensor that is given and not evicted is one that no operator made inside the budget, or of a kind
that is held (`Note [Kinds of tensors]`). Refused both times: the call does not fit the
function, as most of those with arbitrary tensors do not.

## Findings
"""


def write_page(path: Path, entries: list[Entry]) -> None:
    lines = [f"| {' | '.join(COLUMNS)} |", f"| --- {'| ---: ' * (len(COLUMNS) - 1)}|"]
    for source, what in SOURCES.items():
        lines.append(_line(what, _row([e for e in entries if e["name"].startswith(f"{source}:")])))
    lines.append(_line("**all**", _row(entries)))
    head = HEAD.format(
        torch=torch.__version__,
        python=platform.python_version(),
        date=datetime.now(timezone.utc).date(),
    )
    found = [
        f"- {finding['kind']}, {finding['cases']:,} calls: {finding['first']}"
        for entry in entries
        for finding in entry["findings"]
    ] or ["None."]
    path.write_text(head + "\n".join(lines) + "\n" + NOTES + "\n" + "\n".join(found) + "\n")


def _row(entries: list[Entry]) -> list[int]:
    kinds: Counter[str] = Counter()
    for entry in entries:
        kinds.update(entry["kinds"])
    accepted = sum(any(entry["kinds"].get(k) for k in ("same", "varies")) for entry in entries)
    return [
        len(entries),
        accepted,
        sum(kinds.values()),
        kinds["same"],
        kinds["refused"],
        kinds["varies"],
        kinds["left out"],
        sum(entry.get("num_arguments", 0) for entry in entries),
        sum(entry.get("num_evicted", 0) for entry in entries),
        sum(kinds[kind] for kind in FOUND),
    ]


def _line(what: str, row: list[int]) -> str:
    return f"| {what} | " + " | ".join(f"{number:,}" for number in row) + " |"
