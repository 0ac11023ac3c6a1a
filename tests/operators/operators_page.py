"""docs/operators.md, from what a survey found."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from .cases import MODULES, OPERATORS, QUICK_SECONDS

HEAD = """# Operators

Written by `make test-operators`; do not edit.

Every operator of torch's own database (`torch.testing._internal.common_methods_invocations.op_db`)
and every module of the other (`common_modules.module_db`) runs on the CPU, plain and inside a
budget where *everything that can be is evicted after every operator*, small tensors too, and the
results are compared bit by bit: results, gradients, written inputs and the state of the random
generator. Each sample runs as a function with its backward pass, in place, and into given results
(`out=`), those of the right size and empty ones; each module for a step of training, and in
evaluation. float32 and float64 in full; complex64, int64, bool and bfloat16 for at most
{quick_seconds} seconds each.

Made with torch {torch} and Python {python} on {date}.

| | |
| --- | ---: |
"""

# What is no fault of the engine's, and what is: the sections of the page after the table.
SECTIONS = {
    "raw": (
        "Refused",
        "They read the memory of an evicted tensor without an operator. The error names "
        "`coop.materialize`; nothing wrong is computed.",
    ),
    "varies": (
        "Not comparable",
        "Plain runs differ among themselves, with other content of the memory that malloc gives: "
        "torch reads what nobody has written.",
    ),
    "too slow": ("Too slow", "Not all of their samples were run."),
    "wrong": ("Wrong results", ""),
    "error": ("Errors only inside a budget", ""),
    "crash": ("Crashes", ""),
}


def write_page(path: Path, entries: list[dict[str, Any]]) -> None:
    kinds: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    met: set[str] = set()
    kept: dict[str, str] = {}
    findings: dict[str, list[str]] = defaultdict(list)
    num_operators = num_modules = 0
    for entry in entries:
        kinds.update(entry.get("kinds", {}))
        for key in ("num_operators", "num_evictions", "num_replays"):
            sums[key] += entry.get(key, 0)
        met.update(entry.get("met", ()))
        kept.update(entry.get("kept", {}))
        for finding in entry["findings"]:
            findings[finding["kind"]].append(f"{finding['cases']:,} cases, {finding['first']}")
        num_operators += entry["name"] in OPERATORS
        num_modules += entry["name"] in MODULES
    rows = {
        "operators of the database": num_operators,
        "modules of the database": num_modules,
        "aten operators met on the way": len(met),
        "cases: one sample, one type, one variant": sum(kinds.values()),
        "the same bits": kinds["same"],
        "the same error as without a budget": kinds["refused"],
        "refused: memory of an evicted tensor is read without an operator": kinds["raw"],
        "plain runs differ among themselves": kinds["varies"],
        "left out (types other than float32 and float64)": kinds["left out"],
        "left out (the operator is too slow)": kinds["too slow"],
        "**wrong results**": kinds["wrong"],
        "**errors only inside a budget**": kinds["error"],
        "**crashes**": kinds["crash"],
        "operators intercepted": sums["num_operators"],
        "evictions": sums["num_evictions"],
        "operators replayed": sums["num_replays"],
    }
    head = HEAD.format(
        quick_seconds=QUICK_SECONDS,
        torch=torch.__version__,
        python=platform.python_version(),
        date=datetime.now(timezone.utc).date(),
    )
    lines = [head.rstrip("\n")]
    lines += [f"| {name} | {count:,} |" for name, count in rows.items()]
    lines += ["", "## Kept", "", "Results of these stay in memory: they are not recomputed.", ""]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for operator, reason in sorted(kept.items()):
        by_reason[reason].append(operator)
    lines += ["| reason | operators |", "| --- | --- |"]
    for reason, operators in sorted(by_reason.items()):
        lines.append(f"| {reason} | {', '.join(f'`{name}`' for name in operators)} |")
    for kind, (title, meaning) in SECTIONS.items():
        lines += ["", f"## {title}", "", *([meaning, ""] if meaning else [])]
        lines += [f"- {finding}" for finding in findings[kind]] or ["None."]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
