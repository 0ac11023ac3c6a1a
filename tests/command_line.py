"""Running the command line as a user does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from coop.__main__ import main
from coop.options import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
Coop = Callable[..., "subprocess.CompletedProcess[str]"]
InProcess = Callable[..., tuple[object, str, str]]


def environment(**more: str) -> dict[str, str]:
    """Finds this coop from any folder; one thread, for tests that run beside each other."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COOP_B")}
    return {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Beside other work, threads that wait for each other take ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """A shell's background job starts with SIGINT ignored, and so would what it starts."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def coop_command(tmp_path: Path) -> Coop:
    """`python -m coop ...` in an empty folder."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coop", *map(str, arguments)],
            cwd=tmp_path,
            env=environment(**variables),
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> InProcess:
    """The same without a process of its own, which takes seconds: exit code, output, errors."""

    def run(*arguments: object, **variables: str) -> tuple[object, str, str]:
        monkeypatch.chdir(tmp_path)
        # Empty is as if it were not there, and afterwards it is as before.
        for option in OPTIONS:
            monkeypatch.setenv(option.variable, "")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code: object
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """A file `train.py` in that folder."""

    def write(text: str, **_: Any) -> Path:
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write
