"""docs/operators.md, from what a survey found."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch

from .cases import MODULES, OPERATORS

HEAD = """# Operators

Written by `make test-operators`; do not edit.

Every operator of torch's own database (`torch.testing._internal.common_methods_invocations.op_db`)
and every module of the other (`common_modules.module_db`), torch {version}, runs plain and inside a
budget where *everything that can be is evicted after every operator*, small tensors too, and the
results are compared bit by bit: results, gradients, written inputs and the state of the random
generator. Each sample runs as a function with its backward pass, in place, and into given results
(`out=`), those of the right size and empty ones; each module for a step of training, and in
evaluation. float32 and float64 in full; complex64, int64, bool and bfloat16 for at most two seconds
each.

| | |
| --- | ---: |
"""


def write_page(path: Path, entries: list[dict[str, Any]]) -> None:
    kinds: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    met: set[str] = set()
    pinned: dict[str, str] = {}
    findings: list[str] = []
    num_operators = num_modules = 0
    for entry in entries:
        kinds.update(entry.get("kinds", {}))
        for key in ("num_operators", "num_evictions", "num_replays"):
            sums[key] += entry.get(key, 0)
        met.update(entry.get("met", ()))
        pinned.update(entry.get("pinned", {}))
        findings += entry.get("findings", ())
        num_operators += entry["operator"] in OPERATORS
        num_modules += entry["operator"] in MODULES
    rows = {
        "operators of the database": num_operators,
        "modules of the database": num_modules,
        "aten operators met on the way": len(met),
        "cases: one sample, one type, one variant": sum(kinds.values()),
        "the same bits": kinds["same"],
        "the same error as without a budget": kinds["refused"],
        "refused: memory of an evicted tensor is read without an operator": kinds["raw"],
        "plain runs differ among themselves": kinds["varies"],
        "left out (types other than float32 and float64, after two seconds)": kinds["left out"],
        "**wrong results**": kinds["wrong"],
        "**errors only inside a budget**": kinds["error"],
        "**crashes**": kinds["crash"],
        "operators intercepted": sums["num_operators"],
        "evictions": sums["num_evictions"],
        "operators replayed": sums["num_replays"],
    }
    lines = [HEAD.format(version=torch.__version__).rstrip("\n")]
    lines += [f"| {name} | {count:,} |" for name, count in rows.items()]
    lines += ["", "## Pinned", "", "Results of these stay in memory: they are not recomputed.", ""]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for operator, reason in sorted(pinned.items()):
        by_reason[reason].append(operator)
    lines += ["| reason | operators |", "| --- | --- |"]
    for reason, operators in sorted(by_reason.items()):
        lines.append(f"| {reason} | {', '.join(f'`{name}`' for name in operators)} |")
    lines += ["", "## Not the same", ""]
    lines += [f"- {finding}" for finding in findings] or ["None."]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
