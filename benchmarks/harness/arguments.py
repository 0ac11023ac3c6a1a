"""Arguments and messages that the harness's commands have in common."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.harness.cells import CONFIGURATIONS, BenchError, Cell
from benchmarks.harness.runner import OutOfTime

__all__ = [
    "Outcome",
    "configurations",
    "known_names",
    "line",
    "names",
    "positive",
    "ratios",
    "reporting",
]


@dataclass
class Outcome:
    """The exit code of a command that ended early; None while it has not."""

    code: int | None = None


@contextmanager
def reporting(command: str, out: Path) -> Iterator[Outcome]:
    """What stops a measurement becomes one line and an exit code; the file goes on later."""
    outcome = Outcome()
    try:
        yield outcome
    except BenchError as error:
        print(f"{command}: {error}", file=sys.stderr)
        outcome.code = 2
    except (KeyboardInterrupt, OutOfTime) as stop:
        made_in_backward = isinstance(stop, OutOfTime)
        reason = "out of time" if made_in_backward else "stopped"
        print(f"{reason}; the same command goes on with {out}", file=sys.stderr)
        outcome.code = 0 if made_in_backward else 130


def known_names(wanted: Sequence[str]) -> Sequence[str]:
    """The same names, all of which are networks."""
    for name in wanted:
        if name not in models.all_names():
            there = ", ".join(models.all_names())
            raise BenchError(f"no network named {name!r}; there are: {there}")
    return wanted


def line(cell: Cell, row: dict[str, Any]) -> str:
    """A row in one line."""
    name = f"{cell.key:36} "
    if row["status"] != "ok":
        return f"{name}failed: {row['reason']}"
    if "us_per_call" in row:
        return name + "  ".join(f"{what} {us:.2f} us" for what, us in row["us_per_call"].items())
    parts = [f"{row['step_ms']['median']:8.1f} ms"]
    if "memory_ratio" in row:
        parts.append(f"memory {row['memory_ratio']:.2f}")
    if "overhead_cost" in row:
        parts.append(f"cost {row['overhead_cost']:.3f}")
    if "num_evictions" in row:
        parts.append(f"fragmentation {row['fragmentation']:.1%}")
        parts.append(f"search {row['search_share']:.2%}")
    if "overhead_wall" in row:
        parts.append(f"time {row['overhead_wall']:.3f}")
    if "error" in row:
        parts.append(f"prediction {row['error']:+.1%}")
    if row.get("identical") is False:
        parts.append("OTHER RESULTS")
    return name + "  ".join(parts)


def names(text: str) -> list[str]:
    """Names, separated by commas."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("no names")
    return found


def configurations(text: str) -> list[str]:
    """Names of configurations."""
    found = names(text)
    for name in found:
        if name not in CONFIGURATIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(CONFIGURATIONS)}")
    return found


def ratios(text: str) -> list[float]:
    """Budgets as shares."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 < ratio <= 100 for ratio in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ratios, as in 1.0,0.8,0.5")
    return found


def positive(text: str) -> int:
    """A positive whole number."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
