"""`coop run --live` and `coop watch`: how a run goes, and that it is nobody else's business."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coop.status import Status, StatusFile, read_status, runs, runs_folder, status_line
from tests.cli.test_run import TRAIN
from tests.command_line import Coop, InProcess, environment

Script = Callable[[str], Path]
# Until it is told to go on.
WAITS = TRAIN + "print('ready', flush=True)\ninput()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are, for this test alone."""
    (tmp_path / "private").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "private"))
    return tmp_path / "private" / "coop"


@pytest.fixture
def waiting(script: Script, folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run in a budget that evicts, after three steps."""
    script(WAITS)
    process = subprocess.Popen(
        [sys.executable, "-m", "coop", "run", "--budget", "6MiB", "train.py"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    yield process
    if process.poll() is None:
        process.kill()
        process.communicate()


def test_a_run_can_be_watched_and_leaves_nothing(
    waiting: subprocess.Popen[str], in_process: InProcess, folder: Path
) -> None:
    code, out, err = in_process("watch", "--once", waiting.pid)
    assert (code, out) == (0, "")
    title, line = err.splitlines()
    assert title == f"train.py on cpu, process {waiting.pid}"
    # Steps are far shorter than a second: the first is what was written.
    assert line.startswith("coop: step 1 | ")
    assert " | holds " in line
    status = json.loads(in_process("watch", "--json")[1])  # the only one
    assert (status["pid"], status["step"]["step"]) == (waiting.pid, 1)
    # Nobody else's business.
    for path in (folder, folder / str(waiting.pid), folder / str(waiting.pid) / "status.json"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert [each.name for each in (folder / str(waiting.pid)).iterdir()] == ["status.json"]
    waiting.communicate("\n")
    assert list(folder.iterdir()) == []
    assert in_process("watch", waiting.pid) == (
        1,
        "",
        f"coop watch: process {waiting.pid} is no run of yours (by `coop run`) that has made a "
        "step\n",
    )
    assert in_process("watch") == (1, "", "coop watch: no run of yours goes on\n")


def step(**changes: float) -> Status:
    numbers = {
        "step": 7,
        "step_seconds": 1.5,
        "overhead": 1.0,
        "num_evictions": 0,
        "num_replays": 0,
        "saved_bytes": 0,
        "host_saved_bytes": 0,
        "host_loaded_bytes": 0,
        "held_bytes": 2**20,
        "budget_bytes": 2**21,
    }
    return Status(pid=1, started="2", program="p", device="cpu", step=numbers | changes, next="")  # type: ignore[typeddict-item]


def test_the_line_says_what_a_person_wants_to_know() -> None:
    assert status_line(step()) == "step 7 | 1.5 s | holds 1.00 MiB of 2.00 MiB"
    slower = step(overhead=1.13, num_evictions=3, num_replays=4, saved_bytes=1024)
    slower["next"] = "--budget 3MiB evicts nothing"
    assert status_line(slower) == (
        "step 7 | 1.5 s (about +13% for recomputing) | holds 1.00 MiB of 2.00 MiB | "
        "3 evicted, 4 run again | 1.00 KiB copied | --budget 3MiB evicts nothing"
    )
    copying = step(host_saved_bytes=2**21, host_loaded_bytes=2**20)
    assert status_line(copying).endswith(" | 2.00 MiB to main memory, 1.00 MiB back")


def test_a_folder_that_others_may_enter_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    file = StatusFile("p", "cpu")
    file.update(step()["step"], "")
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)
    StatusFile("p", "cpu").update(step()["step"], "")
    assert runs() == [os.getpid()]
    folder.chmod(0o755)
    assert (runs(), read_status(os.getpid())) == ([], None)


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    StatusFile("p", "cpu").update(step()["step"], "")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_another_process_with_the_same_number_is_not_it(folder: Path) -> None:
    file = StatusFile("p", "cpu")
    file.update(step()["step"], "")
    path = runs_folder() / str(os.getpid()) / "status.json"
    assert read_status(os.getpid()) == json.loads(path.read_text())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"started": "1"}))
    assert read_status(os.getpid()) is None
    # Of runs that were killed; there is no process 0.
    (folder / "0").mkdir()
    file.remove()
    StatusFile("p", "cpu").remove()
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_live_is_a_line_in_a_terminal_and_the_output_is_above_it(
    script: Script, folder: Path, tmp_path: Path
) -> None:
    script(TRAIN)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "coop", "run", "--budget", "6MiB", "--live", "train.py"],
        cwd=tmp_path,
        env=environment(TERM="xterm", COLUMNS="200"),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        shown += more
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    for number in (1, 2, 3):
        assert f"coop: step {number} | " in text
    assert "evicted, " in text
    assert "coop: needed" in text


@pytest.mark.slow
def test_live_without_a_terminal_is_lines_of_a_log(coop_command: Coop, script: Script) -> None:
    script(TRAIN)
    ran = coop_command("run", "--budget", "6MiB", "--live", "--quiet", "train.py")
    assert ran.returncode == 0
    assert len(ran.stdout.splitlines()) == 3
    (line,) = ran.stderr.splitlines()  # at most one in ten seconds
    assert line.startswith("coop: step 1 | ")
