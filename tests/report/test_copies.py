"""What reports, traces and callbacks tell of copies in main memory."""

from __future__ import annotations

import pytest

import coop
from coop.progress import Step
from coop.recording import Recording
from coop.report.chrome import COPIED, make_chrome_trace
from coop.report.html import render
from coop.report.timeline import make_timeline
from tests.adapter.test_host_copies import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, coop.Stats, list[Step]]:
    """7.5 MiB of parameters, gradients and state in 2 MiB."""
    folder = str(tmp_path_factory.mktemp("host"))
    steps: list[Step] = []
    with coop.budget("2MiB", device="cpu", host="16MiB", host_dir=folder, events=True) as session:
        session.on_step(steps.append)
        train()
        recording, stats = session.recording(), session.stats()
    return recording, stats, steps


def test_the_timeline_has_all_bytes_over_the_link(
    run: tuple[Recording, coop.Stats, list[Step]],
) -> None:
    recording, stats, _ = run
    timeline = make_timeline(recording)
    assert timeline.link[:, 1].sum() == stats.host_saved_bytes > 0
    assert timeline.link[:, 2].sum() == stats.host_loaded_bytes > 0
    assert timeline.host_held[:, 2].max() == stats.host_peak_bytes
    assert timeline.host_held[-1, 1] == stats.host_held_bytes
    sent = [row["bytes"] * (row["out"] + row["back"]) for row in timeline.most_copied]
    assert sent == sorted(sent, reverse=True)
    assert len(sent) == 10
    assert "a root" in {row["operator"] for row in timeline.most_copied}


def test_the_page_and_the_trace_tell_of_them(
    run: tuple[Recording, coop.Stats, list[Step]],
) -> None:
    recording, stats, _ = run
    assert '"most_copied": [{' in render(recording)
    entries = make_chrome_trace(recording)["traceEvents"]
    copies = [each for each in entries if each["ph"] == "X" and each["tid"] == COPIED]
    assert len(copies) == stats.num_host_saves + stats.num_host_loads
    held = [e["args"]["bytes"] for e in entries if e["name"] == "in main memory"]
    assert max(held) == stats.host_peak_bytes


def test_steps_count_both_ways(run: tuple[Recording, coop.Stats, list[Step]]) -> None:
    _, stats, steps = run
    assert len(steps) == 3
    assert 0 < sum(step["host_saved_bytes"] for step in steps) <= stats.host_saved_bytes
    assert 0 < sum(step["host_loaded_bytes"] for step in steps) <= stats.host_loaded_bytes
    waited = sum(step["host_wait_seconds"] for step in steps)
    assert 0 < waited <= stats.host_wait_ns / 1e9
    assert all(0 < step["host_held_bytes"] <= stats.host_peak_bytes for step in steps)


def test_a_run_without_copies_says_nothing_of_them() -> None:
    with coop.budget("16MiB", device="cpu", events=True) as session:
        train(num_steps=1)
        recording = session.recording()
    timeline = make_timeline(recording)
    assert len(timeline.link) == len(timeline.host_held) == len(timeline.most_copied) == 0
    assert not any(
        e["name"] == "in main memory" for e in make_chrome_trace(recording)["traceEvents"]
    )
