"""What a report shows is what happened: lives, curves and tables, checked one event at a time."""

from __future__ import annotations

import base64
import itertools
import pickle
import pickletools
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coop
from coop.events import EventKind
from coop.recording import Recording
from coop.report import make_timeline
from coop.report.snapshot import BASE, make_snapshot, save_snapshot
from coop.report.timeline import BlockClass, End, Timeline

from .recordings import MIB, large_recording, small_recording, train_a_little


@pytest.fixture(scope="module")
def recording() -> Recording:
    return small_recording()


@pytest.fixture(scope="module")
def timeline(recording: Recording) -> Timeline:
    return make_timeline(recording)


def test_lives_never_overlap_in_the_arena(recording: Recording, timeline: Timeline) -> None:
    """Replays the log block by block; every life must lie where the log says a block is."""
    held: dict[int, int] = {}
    for event in recording.events:
        if event["kind"] == EventKind.ALLOCATE:
            assert event["offset"] not in held
            held[int(event["offset"])] = int(event["bytes"])
        elif event["kind"] in (EventKind.FREE, EventKind.EVICT):
            assert held.pop(int(event["offset"])) == event["bytes"]
        elif event["kind"] == EventKind.HAND_OVER:
            assert held[int(event["offset"])] == event["bytes"]
    lives = timeline.lives
    alive = lives.end == End.ALIVE
    assert dict(zip(lives.offset[alive], lives.bytes[alive], strict=True)) == held
    for time in np.linspace(0, timeline.end_ns, 50):
        now = np.flatnonzero((lives.begin_ns <= time) & (lives.end_ns > time))
        now = now[lives.block_class[now] != BlockClass.TEMPORARY]
        order = now[np.argsort(lives.offset[now])]
        ends = lives.offset[order] + lives.bytes[order]
        assert (ends[:-1] <= lives.offset[order][1:]).all()


def test_evictions_and_recomputations_are_all_there(
    recording: Recording, timeline: Timeline
) -> None:
    stats, lives = recording.stats, timeline.lives
    assert (lives.end == End.EVICTED).sum() == stats["num_evictions"] > 0
    assert lives.bytes[lives.end == End.EVICTED].sum() == stats["evicted_bytes"]
    assert sum(row["replays"] for row in timeline.by_operator) == stats["num_replays"]
    assert sum(row["replay_ns"] for row in timeline.by_operator) == stats["replay_ns"]
    # A replay brings back one value at least, and never one that was not gone.
    assert lives.recomputed.sum() >= stats["num_replays"]
    assert (lives.number[lives.recomputed] >= 2).all()


def test_the_curve_has_the_peak_and_the_fragmentation_is_the_statistics_one(
    recording: Recording, timeline: Timeline
) -> None:
    assert timeline.curve[:, 2].max() == recording.stats["peak_bytes"]
    assert timeline.curve[-1, 1:].max() >= recording.stats["held_bytes"]
    assert len(timeline.forced) == recording.stats["num_forced"]
    assert timeline.forced[:, 1].mean() == pytest.approx(recording.stats["fragmentation"])
    assert [number for _, number in timeline.steps] == [1, 2, 3]


def test_steps_are_the_sessions_own_when_the_recording_began_late() -> None:
    """They were counted from the recording's first: the report's picture said otherwise."""
    with coop.budget("9MiB") as session:
        session.on_step(lambda step: session.record_events() if step["step"] == 2 else None)
        train_a_little(num_steps=4)
        timeline = make_timeline(session.recording())
    assert [number for _, number in timeline.steps] == [3, 4]
    assert {row["step"] for row in timeline.most_recomputed} == {3, 4}


def test_the_kept_tensor_is_listed_with_its_reason(timeline: Timeline) -> None:
    assert timeline.kept == [
        {
            "reason": "coop.keep",
            "operator": "aten::randn",
            "blocks": 1,
            "peak_bytes": 64 * 1024 * 4 + 64,
            "final_bytes": 0,
        }
    ]
    assert timeline.lives.kept.sum() == 1


def test_blocks_are_what_they_are() -> None:
    with coop.budget("8MiB", events=True) as session:
        weight = torch.ones(256, 256, requires_grad=True)
        x = torch.ones(256, 256)
        product = x @ weight  # expensive
        activated = product.relu()  # cheap
        tiny = activated.sum()  # small
        tiny.backward()
        timeline = make_timeline(session.recording())
    lives, names = timeline.lives, session.recording().operator_names

    def classes(operator: str) -> set[BlockClass]:
        ops = np.array([names[op] == operator for op in lives.op])
        return {BlockClass(found) for found in lives.block_class[ops]}

    assert classes("aten::mm") >= {BlockClass.EXPENSIVE, BlockClass.ROOT}  # weight.grad is a root
    assert classes("aten::relu") == {BlockClass.CHEAP}
    assert classes("aten::sum") == {BlockClass.SMALL}


def test_a_log_that_starts_late_knows_what_was_there() -> None:
    with coop.budget("12MiB") as session:
        model = torch.nn.Linear(256, 256)
        kept = model(torch.randn(512, 256))
        coop.keep(kept)
        session.record_events()
        held_bytes = session.stats().held_bytes
        timeline = make_timeline(session.recording())
        assert timeline.curve[-1, 2] == held_bytes
        assert timeline.lives.bytes.sum() == held_bytes
        assert [row["reason"] for row in timeline.kept] == ["coop.keep"]


def test_a_full_log_counts_what_it_does_not_keep() -> None:
    with coop.budget("12MiB") as session:
        session.record_events(max_events=100)
        train_a_little(1)
        recording = session.recording()
    assert len(recording.events) == 100
    assert recording.num_dropped > 100
    make_timeline(recording)


def test_too_many_blocks_lose_the_smallest() -> None:
    recording = large_recording(10_000)
    timeline = make_timeline(recording, max_lives=1_000)
    whole = make_timeline(recording)

    def area(of: Timeline) -> Any:
        return of.lives.bytes * (of.lives.end_ns - of.lives.begin_ns)

    assert (timeline.num_lives, len(timeline.lives)) == (10_000, 1_000)
    assert area(timeline).min() >= np.sort(area(whole))[-1000]
    assert (np.diff(timeline.lives.begin_ns) >= 0).all()


def test_nothing_recorded_is_an_empty_picture() -> None:
    with coop.budget("1MiB", events=True) as session:
        pass
    timeline = make_timeline(session.recording())
    assert (len(timeline.lives), timeline.by_operator, timeline.kept) == (0, [], [])


def test_without_recording_a_report_says_how_to_record() -> None:
    with coop.budget("1MiB") as session, pytest.raises(RuntimeError, match="events=True"):
        session.save_report("never.html")


@pytest.fixture(scope="module")
def unfinished() -> Recording:
    """A recording at whose end something is held."""
    with coop.budget("9MiB", events=True) as session:
        kept = [coop.keep(torch.ones(64, 64)) for _ in range(12)]  # kept
        train_a_little(1)
        recording = session.recording()
        assert len(kept) == 12
    return recording


# What memory_viz's own reader of pickles understands (torch/utils/viz/MemoryViz.js, unpickle).
MEMORY_VIZ_OPCODES = """
APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST
EMPTY_TUPLE FRAME LIST LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO
SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 TUPLE3
"""


def test_a_snapshot_is_what_memory_viz_reads(unfinished: Recording, tmp_path: Path) -> None:
    save_snapshot(unfinished, tmp_path / "snapshot.pickle")
    content = (tmp_path / "snapshot.pickle").read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(content)} <= {
        *MEMORY_VIZ_OPCODES.split()
    }
    snapshot = pickle.loads(content)
    assert snapshot == make_snapshot(unfinished)
    # The page follows the trace backwards from the blocks at the end, by address.
    (segment,), (trace,) = snapshot["segments"], snapshot["device_traces"]
    held: dict[int, int] = {}
    for before, entry in itertools.pairwise(trace):
        if entry["action"] == "alloc":
            held[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            # With nothing in between, the page takes the two as one.
            assert (before["action"], before["addr"]) == ("free_requested", entry["addr"])
            assert held.pop(entry["addr"]) == entry["size"]
    active = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
    assert held == {block["address"]: block["size"] for block in active}
    assert len(held) >= 12
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"] == 9 * MIB


def test_a_snapshot_is_read_by_the_tools_of_torch(
    unfinished: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from torch.cuda import _memory_viz

    save_snapshot(unfinished, tmp_path / "snapshot.pickle")
    content = (tmp_path / "snapshot.pickle").read_bytes()
    monkeypatch.chdir(tmp_path)

    def tool(action: str, *more: str) -> str:
        """`python -m torch.cuda._memory_viz ACTION snapshot.pickle`, without its process."""
        monkeypatch.setattr(sys, "argv", ["_memory_viz", action, "snapshot.pickle", *more])
        monkeypatch.delitem(sys.modules, "torch.cuda._memory_viz", raising=False)
        runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
        return capsys.readouterr().out

    kinds = unfinished.events["kind"]
    num_allocated = (kinds == EventKind.ALLOCATE).sum()
    num_freed = np.isin(kinds, (EventKind.FREE, EventKind.EVICT)).sum()
    stats = tool("stats").splitlines()
    assert {"segments: 1", "total_reserved: 9.0MiB"} <= set(stats)
    trace = tool("trace").splitlines()
    assert trace[:3] == [
        "Device 0 ----------------",
        f"{1 + num_allocated + 2 * num_freed} entries",
        f"a = cudaMalloc({BASE}, 9.0MiB)",
    ]
    assert sum(" = a[" in line for line in trace) == num_allocated
    assert sum(line.startswith("del ") for line in trace) == num_freed
    for action in ("trace_plot", "segment_plot"):
        tool(action, "-o", f"{action}.html")
        page = (tmp_path / f"{action}.html").read_text()
        assert base64.b64encode(content[:3000]).decode() in page

    # Flame graphs: every byte of the arena once, under the line and the operator that asked for it.
    snapshot = make_snapshot(unfinished)
    lines = _memory_viz.memory(snapshot, format_flamegraph=str.splitlines)
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 9 * MIB
    stacks = {line.rpartition(" ")[0] for line in lines}
    (line,) = {source.line for source in unfinished.sources if source.text.endswith("# kept")}
    kept = f"test_timeline.py:{line}:<listcomp>;operator:0:aten::ones"
    assert f"stream_0;active_allocated;{kept}" in stacks
    arguments = (snapshot["segments"], snapshot["segments"])
    assert _memory_viz.compare(*arguments, format_flamegraph=str.splitlines) == []


def test_files_are_written_whole_or_not_at_all(recording: Recording, tmp_path: Path) -> None:
    with coop.budget("9MiB", events=True) as session:
        train_a_little(1)
        session.save_snapshot(tmp_path / "now.pickle")  # inside, too
    session.save_snapshot(tmp_path / "later.pickle")
    content = [
        pickle.loads((tmp_path / name).read_bytes()) for name in ("now.pickle", "later.pickle")
    ]
    assert content[0]["device_traces"][0] == content[1]["device_traces"][0]
    with pytest.raises(OSError, match="there is no directory"):
        session.save_report(tmp_path / "no" / "report.html")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["later.pickle", "now.pickle"]


def test_a_still_is_a_picture(recording: Recording, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="stills need matplotlib, which is not installed")
    from coop.report import save_still

    save_still(recording, tmp_path / "still.png", "a title", size=(640, 360))
    content = (tmp_path / "still.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 4000
