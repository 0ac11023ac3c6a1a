"""Talks to the process that starts the cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.cells import BenchError

__all__ = ["Server", "Turns"]

Row = dict[str, Any]


class Server:
    """One server process, started when it is first asked. It measures one cell at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Row) -> Row:
        """The row of a cell; one with a reason where there is no result."""
        self._write(request)
        row: Row = self._read()
        return row

    def begin(self, request: Row) -> Turns:
        """A cell that runs steps as it is told."""
        self._write({**request, "turns": True})
        return Turns(self)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _write(self, message: Any) -> None:
        if self._process is None:
            self._process = _start()
        assert self._process.stdin is not None
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self._died()

    def _read(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._died()
        return json.loads(line)

    def _died(self) -> None:
        assert self._process is not None
        errors = self._process.communicate()[1].strip().splitlines()[-1:] or ["no message"]
        raise BenchError(f"the process that starts the cells ended: {errors[0]}")


class Turns:
    """A cell between its warm-up and its end. `failed` has its row as soon as it has failed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.failed: Row | None = None
        self._answer()

    def steps(self, count: int) -> list[float]:
        """Runs so many steps; their times in ms, none if the cell failed."""
        if self.failed is not None:
            return []
        self._server._write(count)
        times: list[float] = self._answer() or []
        return times

    def end(self) -> Row:
        """The row."""
        if self.failed is not None:
            return self.failed
        self._server._write(0)
        row: Row = self._server._read()
        return row

    def _answer(self) -> Any:
        answer = self._server._read()
        if isinstance(answer, dict):
            self.failed = answer
            return None
        return answer


def _start() -> subprocess.Popen[str]:
    environment = dict(os.environ)
    # benchmarks/ must be importable where the cells run.
    root = str(Path(__file__).resolve().parents[2])
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{root}{os.pathsep}{path}" if path else root
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Whoever asks in the server whether there is a GPU must not start CUDA.
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # A thread pool in the server would not survive the fork.
    environment["OPENBLAS_NUM_THREADS"] = "1"
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.harness.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
