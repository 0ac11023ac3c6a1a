"""Steps for a person: alike ones that follow each other are one row."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from coop.progress import Step

__all__ = ["group_steps"]

MAX_ROWS = 40


def group_steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Rows of steps that went the same way, with the median of what each step did.

    Only the first rows, where a program changes its way all the time; `num_more` of the last one
    says how many steps are left out.
    """
    groups = [(way, list(group)) for way, group in itertools.groupby(steps, way_of)]
    rows = [_row(way, group) for way, group in groups[:MAX_ROWS]]
    if rows:
        rows[-1]["num_more"] = sum(len(group) for _, group in groups[MAX_ROWS:])
    return rows


def way_of(step: Step) -> str:
    """How the step was done, as the report says it."""
    if step["num_left"]:
        way = "left its schedule"
    elif step["num_followed"]:
        way = "followed a schedule"
    elif step["num_evictions"]:
        way = "by the policy"
    else:
        way = "nothing evicted"
    return way + ("; a schedule was made after it" if step["num_schedules"] else "")


def _row(way: str, group: list[Step]) -> dict[str, Any]:
    rows = [dict(step) for step in group]

    def middle(name: str) -> float:
        return statistics.median(float(str(row[name])) for row in rows)

    return {
        "first": group[0]["step"],
        "last": group[-1]["step"],
        "way": way,
        "step_seconds": middle("step_seconds"),
        "overhead": middle("overhead") - 1,
        "num_evictions": middle("num_evictions"),
        "num_replays": middle("num_replays"),
        "num_searches": middle("num_searches"),
        "saved_bytes": middle("saved_bytes"),
        "host_saved_bytes": middle("host_saved_bytes"),
        "host_loaded_bytes": middle("host_loaded_bytes"),
        "num_more": 0,
    }
