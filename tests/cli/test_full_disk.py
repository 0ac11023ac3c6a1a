"""A disk that is full under traces, reports and snapshots: an error, and all else as it was."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import coop
from coop.trace import TraceWriter
from tests.report.recordings import train_a_little


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file may become longer than 4 KiB: the kernel's own "no more" for this process alone.

    For a statement, not for a test: pytest's own output may go to a file.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("save", ["save_report", "save_snapshot"])
def test_a_report_that_does_not_fit_on_the_disk_leaves_the_last_one_and_training_goes_on(
    tmp_path: Path, save: str
) -> None:
    path = tmp_path / "report"
    path.write_text("the last one")
    expected = train_a_little()
    with coop.budget("9MiB", events=True) as session:
        first = train_a_little()
        with full_disk(), pytest.raises(OSError, match="File too large"):
            getattr(session, save)(path)
        assert path.read_text() == "the last one"
        assert list(tmp_path.iterdir()) == [path]
        assert train_a_little() == first == expected


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_trace_that_does_not_fit_on_the_disk_raises(tmp_path: Path, suffix: str) -> None:
    def write() -> None:
        with TraceWriter(tmp_path / f"trace{suffix}") as writer:
            for number in range(20_000):
                writer.root(number, number * 31 % 8191)

    with full_disk(), pytest.raises(OSError, match="File too large"):
        write()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_is_not_replaced_by_a_report() -> None:
    """It was: a report is written beside its place and then put there."""
    with coop.budget("1MiB", events=True) as session:
        for save in (session.save_report, session.save_snapshot):
            with pytest.raises(OSError, match="'/dev/full': it is not a regular file"):
                save("/dev/full")
    assert Path("/dev/full").is_char_device()
    assert os.access("/dev/full", os.W_OK)
