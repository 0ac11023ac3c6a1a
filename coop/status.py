"""How a run goes, while it runs: a line, and a small file that `coop watch` reads.

The file lies in a folder of the run's own, which only its user may enter, and goes with the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TypedDict

from coop.progress import Step
from coop.sizes import format_bytes

__all__ = ["Status", "StatusFile", "read_status", "runs", "runs_folder", "status_line"]

# Nobody reads faster, and steps may be short.
LEAST_SECONDS = 1.0


class Status(TypedDict):
    """What the file has."""

    pid: int
    started: str  # by the kernel: another process may get the same number later
    program: str
    device: str
    step: Step
    next: str  # what would be faster


def status_line(status: Status) -> str:
    """For people."""
    step = status["step"]
    parts = [f"step {step['step']}", f"{step['step_seconds']:.3g} s"]
    if step["num_evictions"] or step["num_replays"]:
        parts[-1] += f" (about +{step['overhead'] - 1:.0%} for recomputing)"
        parts.append(f"{step['num_evictions']} evicted, {step['num_replays']} run again")
    budget, held = step["budget_bytes"], step["held_bytes"]
    parts.insert(2, f"holds {format_bytes(held)} of {format_bytes(budget)}")
    if step["saved_bytes"]:
        parts.append(f"{format_bytes(step['saved_bytes'])} copied")
    if step["host_saved_bytes"] or step["host_loaded_bytes"]:
        out, back = format_bytes(step["host_saved_bytes"]), format_bytes(step["host_loaded_bytes"])
        parts.append(f"{out} to main memory, {back} back")
    if status["next"]:
        parts.append(status["next"])
    return " | ".join(parts)


def runs_folder() -> Path:
    """Of this user's runs, each in a folder named after its process."""
    private = os.environ.get("XDG_RUNTIME_DIR")
    if private and Path(private).is_dir():
        return Path(private) / "coop"
    return Path(tempfile.gettempdir()) / f"coop-{os.geteuid()}"


def runs() -> list[int]:
    """Processes of this user that `coop watch` can follow."""
    if not _is_private(runs_folder()):
        return []
    names = (folder.name for folder in runs_folder().iterdir())
    found = sorted(int(name) for name in names if name.isdigit())
    return [pid for pid in found if read_status(pid) is not None]


def read_status(pid: int) -> Status | None:
    """What a run said last; None when there is none, or it has ended."""
    folder = runs_folder()
    if not _is_private(folder):
        return None
    try:
        status: Status = json.loads((folder / str(pid) / "status.json").read_bytes())
    except (OSError, ValueError):
        return None
    return status if status["started"] == _started(pid) else None


class StatusFile:
    """Written by a run after its steps, at most once a second."""

    def __init__(self, program: str, device: str) -> None:
        self._pid = os.getpid()
        self._folder = runs_folder() / str(self._pid)
        self._program = program
        self._device = device
        self._started = _started(self._pid)
        self._last = -LEAST_SECONDS
        self._works = self._make_folder()

    def update(self, step: Step, next_better: str) -> Status:
        """After a step; gives what is to be shown."""
        status = Status(
            pid=self._pid,
            started=self._started,
            program=self._program,
            device=self._device,
            step=step,
            next=next_better,
        )
        now = time.monotonic()
        if self._works and now - self._last >= LEAST_SECONDS:
            self._last = now
            self._write(json.dumps(status).encode())
        return status

    def remove(self) -> None:
        """At the end of the run."""
        if self._works and os.getpid() == self._pid:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make_folder(self) -> bool:
        """Whether there is one. A run does not fail because nobody can watch it."""
        everything = self._folder.parent
        with contextlib.suppress(OSError):
            everything.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(everything):
                return False
            for folder in everything.iterdir():
                if folder.name.isdigit() and _started(int(folder.name)) == "":
                    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700)
            return True
        return False

    def _write(self, content: bytes) -> None:
        temporary = self._folder / "status.new"
        with contextlib.suppress(OSError):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            temporary.replace(self._folder / "status.json")


def _is_private(folder: Path) -> bool:
    """A folder of ours that nobody else may enter; in /tmp anybody could have made it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_ours = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and is_ours


def _started(pid: int) -> str:
    """When a process was started, as the kernel counts; empty when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]  # its name may have any letters
