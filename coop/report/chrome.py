"""The event log as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Time is the estimated cost of operators, as in the report. Operators that the program asked for and
those that ran again are two tracks; what is held, and what was evicted so far, are curves.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coop.events import EventKind
from coop.files import write_whole
from coop.recording import Recording

__all__ = ["make_chrome_trace", "save_chrome_trace"]

STEPS, ASKED_FOR, RUN_AGAIN, COPIED = 1, 2, 3, 4  # tracks
TRACKS = {STEPS: "steps", ASKED_FOR: "operators", RUN_AGAIN: "recomputed operators"}
COPIES = {
    EventKind.SAVE: "to main memory",
    EventKind.LOAD: "and back",
    EventKind.UNSAVE: "the copy is gone",
}


def save_chrome_trace(recording: Recording, path: str | Path) -> None:
    """Write the trace as JSON, compressed if the name ends in `.gz`."""
    content = json.dumps(make_chrome_trace(recording)).encode(errors="replace")
    write_whole(path, gzip.compress(content) if str(path).endswith(".gz") else content)


def make_chrome_trace(recording: Recording) -> dict[str, Any]:
    """The object of the Trace Event Format, all times in microseconds."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"policy": recording.policy, "device": recording.device, **recording.stats},
        "traceEvents": [*_names(recording), *_entries(recording)],
    }


def _names(recording: Recording) -> Iterator[dict[str, Any]]:
    yield _entry("M", "process_name", args={"name": f"coop on {recording.device}"})
    for track, name in TRACKS.items():
        yield _entry("M", "thread_name", track, args={"name": name})
        yield _entry("M", "thread_sort_index", track, args={"sort_index": track})


def _entries(recording: Recording) -> Iterator[dict[str, Any]]:
    events = recording.events
    begin = int(events["clock"][0]) if len(events) else 0
    evicted = held = saved = 0
    step_began = 0.0
    names, sources = recording.operator_names, recording.sources
    changes = (EventKind.ALLOCATE, EventKind.FREE, EventKind.EVICT)
    operators = (EventKind.OPERATOR, EventKind.REPLAY)
    if np.isin(events["kind"], tuple(COPIES)).any():
        yield _entry("M", "thread_name", COPIED, args={"name": "copies"})
        yield _entry("M", "thread_sort_index", COPIED, args={"sort_index": COPIED})
    relevant = events[np.isin(events["kind"], (*changes, *operators, *COPIES, EventKind.STEP))]
    for _, num_bytes, clock, amount, value, op, kind, _, source in relevant.tolist():
        time_us = (clock - begin) / 1000
        if kind in operators:
            # The event is of the end.
            args: dict[str, Any] = {"asked for by": sources[source].place} if source else {}
            if kind == EventKind.REPLAY:
                args |= {"value": value, "bytes": num_bytes}
            track = RUN_AGAIN if kind == EventKind.REPLAY else ASKED_FOR
            name = names[op] if 0 <= op < len(names) else "outside of operators"
            first = max(time_us - amount / 1000, 0.0)
            yield _entry("X", name, track, first, dur=time_us - first, args=args)
            yield _entry("C", "bytes", ts=time_us, args={"held": held})
            yield _entry("C", "evicted so far", ts=time_us, args={"bytes": evicted})
        elif kind in COPIES:
            saved += {EventKind.SAVE: num_bytes, EventKind.UNSAVE: -num_bytes}.get(kind, 0)
            if kind != EventKind.UNSAVE:
                # The time waited ends here; the copy itself may have begun before.
                first = max(time_us - amount / 1000, 0.0)
                args = {"value": value, "bytes": num_bytes}
                yield _entry("X", COPIES[kind], COPIED, first, dur=time_us - first, args=args)
            yield _entry("C", "in main memory", ts=time_us, args={"bytes": saved})
        elif kind == EventKind.STEP:
            yield _entry("X", f"step {value}", STEPS, step_began, dur=time_us - step_began)
            step_began = time_us
        else:
            held += num_bytes if kind == EventKind.ALLOCATE else -num_bytes
            evicted += num_bytes if kind == EventKind.EVICT else 0


def _entry(phase: str, name: str, track: int = 0, ts: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": 0, "tid": track, "ts": ts, **more}
