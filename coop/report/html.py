"""One HTML file that needs nothing else: no network, no library, no other file."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coop.files import write_whole
from coop.recording import Recording
from coop.report.steps import group_steps
from coop.report.timeline import Timeline, make_timeline

__all__ = ["SCRIPTS", "save_report"]

# One script in the page: what is shared, drawing, moving and hovering, the rest of the page.
SCRIPTS = ("page.data.js", "page.draw.js", "page.move.js", "page.tables.js")


def save_report(recording: Recording, path: str | Path, title: str = "") -> None:
    """Write the report; whole, or not at all."""
    # A title may be a file's name, which may be no text.
    write_whole(path, render(recording, title).encode(errors="replace"))


def render(recording: Recording, title: str = "") -> str:
    """The text of the page."""
    timeline = make_timeline(recording)
    columns, layout = _columns(timeline)
    facts = {
        "title": title or "coop",
        "summary": recording.summary,
        "policy": recording.policy,
        "device": recording.device,
        "stats": recording.stats,
        "num_dropped": recording.num_dropped,
        "num_lives": timeline.num_lives,
        "end_ns": timeline.end_ns,
        "steps": timeline.steps,
        "by_operator": timeline.by_operator,
        "graphs": timeline.graphs,
        "most_recomputed": timeline.most_recomputed,
        "most_copied": timeline.most_copied,
        "kept": timeline.kept,
        "rank": recording.rank,
        "step_groups": group_steps(recording.steps),
        "failures": [failure.message for failure in recording.failures],
        "operators": recording.operator_names,
        "sources": _sources(recording, timeline),
        "layout": layout,
    }
    page = resources.files("coop.report")
    parts = {
        "TITLE": html.escape(title or "coop"),
        "STYLE": (page / "page.css").read_text(),
        "SCRIPT": "\n".join((page / name).read_text() for name in SCRIPTS),
        # `<` would end the element that holds the text.
        "FACTS": json.dumps(facts).replace("<", "\\u003c"),
        "COLUMNS": base64.b64encode(zlib.compress(columns, 6)).decode(),
    }
    # In one pass: a title may look like a name.
    text = (page / "page.html").read_text()
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda name: parts[name[1]], text)


def _sources(recording: Recording, timeline: Timeline) -> dict[int, tuple[str, str]]:
    """Where, and what stands there: the lines that the report shows, by number."""
    shown = {row["source"] for row in timeline.most_recomputed}
    shown.update(np.unique(timeline.lives.source).tolist())
    lines = {number: recording.sources[number] for number in shown if number}
    return {number: (line.place, line.text) for number, line in sorted(lines.items())}


def _columns(timeline: Timeline) -> tuple[bytes, list[dict[str, Any]]]:
    """All columns one after the other, each at a multiple of 8 bytes; and where each one is."""
    lives = timeline.lives
    flags = lives.block_class | lives.end << 3 | lives.recomputed << 5 | lives.kept << 6
    columns: dict[str, npt.NDArray[Any]] = {
        "begin": lives.begin_ns.astype("<f8"),
        "end": lives.end_ns.astype("<f8"),
        "offset": lives.offset.astype("<f8"),
        "bytes": lives.bytes.astype("<f8"),
        "op": lives.op.astype("<i4"),
        "source": lives.source.astype("<u2"),
        "value": lives.value.astype("<f8"),
        "cost": lives.cost_ns.astype("<f4"),
        "number": np.minimum(lives.number, 65535).astype("<u2"),
        "flags": flags.astype("u1"),
        "curve_time": timeline.curve[:, 0].astype("<f8"),
        "curve_least": timeline.curve[:, 1].astype("<f8"),
        "curve_most": timeline.curve[:, 2].astype("<f8"),
        "host_time": timeline.host_held[:, 0].astype("<f8"),
        "host_least": timeline.host_held[:, 1].astype("<f8"),
        "host_most": timeline.host_held[:, 2].astype("<f8"),
        "link_time": timeline.link[:, 0].astype("<f8"),
        "link_out": timeline.link[:, 1].astype("<f8"),
        "link_back": timeline.link[:, 2].astype("<f8"),
        "forced_time": timeline.forced[:, 0].astype("<f8"),
        "forced_free": timeline.forced[:, 1].astype("<f4"),
    }
    content = bytearray()
    layout = []
    for name, column in columns.items():
        layout.append(
            {
                "name": name,
                "type": column.dtype.str.lstrip("<|"),
                "offset": len(content),
                "length": len(column),
            }
        )
        content += column.tobytes()
        content += bytes(-len(content) % 8)
    return bytes(content), layout
