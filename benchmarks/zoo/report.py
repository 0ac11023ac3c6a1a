"""What the rows of the zoo say, half by half: a table, and whether a policy is general.

A cell that counts is a budget of at least what checkpointing by block allocates, or that itself,
in which all operators can run. Its target is the better of floor and sketch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .measure import CHECKPOINT, RATIOS, Row
from .networks import HALVES

# At most so many times the target, and so much of the step more.
MOST_TIMES, MOST_MORE = 1.6, 0.02
MOST_MEDIAN = 1.25
MOST_WORSE = 1.15  # the judged half's median over the tuned half's
MOST_JUMP = 0.05  # of a step, for 1% of the peak
MOST_UNFIT = 0.03  # of the budgets above the smallest that fits


def _extra(row: Row) -> float:
    return float(row.get("extra", math.inf))


def target(row: Row) -> float:
    """The better of floor and sketch."""
    return float(min(row["extra_floor"], row["extra_sketch"]))


def counted(rows: Sequence[Row]) -> list[Row]:
    """The cells that a policy is judged by."""
    least = {r["model"]: r["budget_bytes"] for r in rows if r.get("label") == CHECKPOINT}
    return [
        row
        for row in rows
        if row["kind"] != "scan"
        and "extra_floor" in row
        and row["budget_bytes"] >= least.get(row["model"], 0)
    ]


def is_general(row: Row, of: float) -> bool:
    """It is within what is allowed beside a target."""
    return _extra(row) <= MOST_TIMES * of + MOST_MORE


def times(row: Row) -> float:
    """Extra compute over the target; 1 where there is none of either."""
    extra, least = _extra(row), target(row)
    return extra / least if least else (math.inf if extra else 1.0)


@dataclass(frozen=True)
class Cliffs:
    """What budgets 1% apart say."""

    most_jump: float
    at_percent: int  # the smaller budget of the two
    num_budgets: int  # from the largest to the smallest that fits
    num_unfit: int

    @classmethod
    def of(cls, row: Row) -> Cliffs:
        """From a row of kind `scan`."""
        extras = {int(percent): extra for percent, extra in row["extras"].items()}
        fitting = [percent for percent, extra in extras.items() if extra is not None]
        if not fitting:  # which is told elsewhere
            return cls(0.0, 100, 0, 0)
        above = [percent for percent in extras if percent >= min(fitting)]
        jumps = [
            (abs(extras[low] - extras[high]), low)
            for high, low in pairwise(sorted(fitting, reverse=True))
        ]
        most, percent = max(jumps, default=(0.0, min(fitting)))
        return cls(most, percent, len(above), len(above) - len(fitting))


def _shown(share: float | None) -> str:
    return "-" if share is None or math.isinf(share) else f"{share:.1%}"


def cells(rows: Sequence[Row], half: str) -> list[list[str]]:
    """A table: its header, and a line for each network."""
    of_half = [row for row in rows if row["half"] == half and row["kind"] != "scan"]
    by_cell = {(row["model"], row.get("ratio", row.get("label"))): row for row in of_half}
    header = [f"{half}: floor / sketch / policy", *map(str, RATIOS)]
    lines = [[*header, "at checkpointing's memory", "checkpointing"]]
    for model in dict.fromkeys(row["model"] for row in of_half):
        lines.append([model])
        for column in (*RATIOS, CHECKPOINT):
            row = by_cell.get((model, column))
            if row is None:
                lines[-1].append("")
                continue
            said = [row.get("extra_floor"), row.get("extra_sketch"), row.get("extra")]
            memory = f"{row['memory_ratio']:.2f}: " if column == CHECKPOINT else ""
            lines[-1].append(memory + " / ".join(map(_shown, said)))
        own = by_cell.get((model, CHECKPOINT))
        lines[-1].append(_shown(own["extra_checkpoint"]) if own else "")
    return lines


def table(rows: Sequence[Row], half: str) -> str:
    """The same in Markdown."""
    header, *lines = cells(rows, half)
    under = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, under, *lines))


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By half, the numbers that the issue asks for."""
    found: dict[str, dict[str, Any]] = {}
    for half in HALVES:
        of_half = [row for row in rows if row["half"] == half]
        cells = counted(of_half)
        checkpointed = [row for row in cells if row.get("label") == CHECKPOINT]
        cliffs = {r["model"]: Cliffs.of(r) for r in of_half if r["kind"] == "scan"}
        if not cells:
            continue
        found[half] = {
            "cells": len(cells),
            "unfit": [r["key"] for r in cells if "extra" not in r],
            "too_much": [r["key"] for r in cells if not is_general(r, target(r))],
            "too_much_for_sketch": [
                r["key"] for r in cells if not is_general(r, r["extra_sketch"])
            ],
            "median_times": statistics.median(times(row) for row in cells),
            "mean_extra": statistics.mean(min(_extra(row), 5.0) for row in cells),
            "checkpointed": len(checkpointed),
            "not_beaten": [r["model"] for r in checkpointed if _extra(r) >= r["extra_checkpoint"]],
            "scanned": len(cliffs),
            "jumps": {m: c for m, c in cliffs.items() if c.most_jump > MOST_JUMP},
            "holes": {m: c for m, c in cliffs.items() if c.num_unfit > MOST_UNFIT * c.num_budgets},
        }
    return found


def told(rows: Sequence[Row]) -> str:
    """The summary in words."""
    lines = []
    halves = summary(rows)
    for half, found in halves.items():
        num_cells = found["cells"]

        def within(name: str, found: dict[str, Any] = found, count: int = num_cells) -> str:
            return f"{count - len(found[name])} of {count}"

        lines += [
            f"**{half}**, {num_cells} cells:",
            f"- generality: {within('too_much')} within {MOST_TIMES} x target + {MOST_MORE:.0%} "
            f"({within('too_much_for_sketch')} by the sketch alone); median "
            f"{found['median_times']:.2f} x (at most {MOST_MEDIAN}); mean extra compute "
            f"{found['mean_extra']:.1%}; {len(found['unfit'])} do not fit",
            f"- checkpointing is beaten on {found['checkpointed'] - len(found['not_beaten'])} of "
            f"{found['checkpointed']} networks; not on: {', '.join(found['not_beaten']) or '-'}",
        ]
        if found["scanned"]:
            jumps = ", ".join(
                f"{model} {cliffs.most_jump:.0%} at {cliffs.at_percent}%"
                for model, cliffs in found["jumps"].items()
            )
            holes = ", ".join(
                f"{model} {cliffs.num_unfit} of {cliffs.num_budgets}"
                for model, cliffs in found["holes"].items()
            )
            lines += [
                f"- no cliff: of {found['scanned']} networks, jumps of more than {MOST_JUMP:.0%} "
                f"on: {jumps or '-'}; budgets that do not fit above the smallest that does, more "
                f"than {MOST_UNFIT:.0%}: {holes or '-'}",
            ]
    if len(halves) == len(HALVES):
        worse = halves["judge"]["median_times"] / halves["tune"]["median_times"]
        lines.append(f"judge over tune: {worse:.2f} (at most {MOST_WORSE})")
    return "\n".join(lines)
