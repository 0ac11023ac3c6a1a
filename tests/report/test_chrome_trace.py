"""The trace for Perfetto, and the rows of steps, against the event log and the statistics."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import coop
from coop.events import EventKind
from coop.progress import Step
from coop.report.chrome import make_chrome_trace
from coop.report.steps import group_steps

from .recordings import small_recording, train_a_little


def test_every_operator_and_every_recomputation_is_a_slice() -> None:
    recording = small_recording()
    entries = make_chrome_trace(recording)["traceEvents"]
    slices: dict[str, list[Any]] = {"steps": [], "operators": [], "recomputed operators": []}
    tracks = {e["tid"]: e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    for entry in entries:
        if entry["ph"] == "X":
            slices[tracks[entry["tid"]]].append(entry)
    for name, kind in (
        ("operators", EventKind.OPERATOR),
        ("recomputed operators", EventKind.REPLAY),
    ):
        events = recording.events[recording.events["kind"] == kind]
        assert len(events) > 0
        names = [recording.operator_names[op] for op in events["op"]]
        assert [entry["name"] for entry in slices[name]] == names
        assert all(entry["dur"] >= 0 and entry["ts"] >= 0 for entry in slices[name])
    assert [entry["name"] for entry in slices["steps"]] == ["step 1", "step 2", "step 3"]
    # Slices of one track follow each other.
    for rows in slices.values():
        for before, after in itertools.pairwise(rows):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    held = [entry["args"]["held"] for entry in entries if entry["name"] == "bytes"]
    assert 0 < max(held) <= recording.stats["budget_bytes"]
    assert min(held) >= 0


def test_it_is_written_whole_and_compressed_by_its_name(tmp_path: Path) -> None:
    with coop.budget("9MiB", device="cpu", events=True) as session:
        train_a_little(1)
    session.save_chrome_trace(tmp_path / "trace.json")
    session.save_chrome_trace(tmp_path / "trace.json.gz")
    plain = (tmp_path / "trace.json").read_bytes()
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == plain
    assert json.loads(plain)["otherData"]["num_steps"] == 1


def test_steps_are_told_as_they_went() -> None:
    with coop.budget("9MiB", device="cpu", events=True) as session:
        train_a_little(8)
    stats, steps = session.stats(), session.recording().steps
    assert [step["step"] for step in steps] == list(range(1, 9))
    for name in ("num_evictions", "num_replays", "num_schedules", "num_followed", "num_left"):
        assert sum(int(str(dict(step)[name])) for step in steps) == getattr(stats, name), name
    assert stats.num_followed > 0
    rows = group_steps(steps)
    assert sum(row["last"] - row["first"] + 1 for row in rows) == 8
    assert rows[0]["way"].startswith("by the policy")
    followed = [row for row in rows if row["way"].startswith("followed a schedule")]
    assert sum(row["last"] - row["first"] + 1 for row in followed) == stats.num_followed


def test_alike_steps_are_one_row_and_the_rest_is_counted() -> None:
    zero: Any = dict.fromkeys(Step.__annotations__, 0)
    quiet = [zero | {"step": n, "overhead": 1.0, "step_seconds": n} for n in (1, 2, 3)]
    (row,) = group_steps(quiet)
    assert (row["first"], row["last"], row["way"], row["step_seconds"]) == (
        1,
        3,
        "nothing evicted",
        2,
    )
    restless = [zero | {"step": n, "overhead": 1.0, "num_left": n % 2} for n in range(1, 101)]
    rows = group_steps(restless)
    assert (len(rows), rows[-1]["num_more"]) == (40, 60)
    assert group_steps([]) == []
