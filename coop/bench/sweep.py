"""Measures the cells that a results file does not have yet, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from coop.bench.cells import BenchError, Cell, workloads
from coop.bench.results import Results

__all__ = ["SMALLEST_STEP", "OutOfTime", "Sweep", "smallest"]

Row = dict[str, Any]

# The smallest budget is searched down to this share of the peak, and so many times further.
SMALLEST_STEP = 0.01
MOST_MISSES = 4
# Budgets are whole pages.
_GRAIN_BYTES = 4096
# A cell is not started with less time than this left: it would not come to its end.
_LEAST_S = 5.0


class OutOfTime(Exception):
    """The time for the whole sweep is over; what is missing can be measured later."""


class Sweep:
    """A plan of cells and the file they go to. Use it as a context: it runs a server process."""

    def __init__(
        self,
        results: Results,
        cells: Sequence[Cell],
        timeout_s: float,
        time_limit_s: float | None = None,
    ) -> None:
        self.results = results
        self.cells = list(cells)
        self._timeout_s = timeout_s
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()

    @property
    def missing(self) -> list[Cell]:
        """What is still to be done."""
        return [cell for cell in self.cells if cell.key not in self.results.rows]

    def run(self, report: Callable[[Cell, Row], None]) -> None:
        """Measures what is missing; `report` gets every row. What goes wrong becomes a row too.

        Raises `OutOfTime` when the time limit is over, with the file as it was after the last cell.
        """
        for cell in self.missing:
            row = self._measure(cell)
            self.results.add(cell, row)
            report(cell, row)

    def _measure(self, cell: Cell) -> Row:
        plain = self.results.plain(cell.model)
        if cell.configuration == "plain":
            return self._ask(cell, None, None)
        if plain is None:
            reason = "there is nothing to compare with: the plain run failed"
            return {"status": "failed", "reason": reason}
        if cell.kind == "plain":
            row = self._ask(cell, None, plain)
            return _compared(row, plain, row.get("peak_bytes"))
        if cell.kind == "smallest":
            return self._smallest(cell, plain)
        assert cell.ratio is not None
        return self._in_budget(cell, plain, cell.ratio * plain["peak_bytes"])

    def _in_budget(self, cell: Cell, plain: Row, num_bytes: float) -> Row:
        budget_bytes = -(-int(num_bytes) // _GRAIN_BYTES) * _GRAIN_BYTES
        row = self._ask(cell, budget_bytes, plain)
        return _compared({"budget_bytes": budget_bytes, **row}, plain, budget_bytes)

    def _smallest(self, cell: Cell, plain: Row) -> Row:
        """The row of the smallest budget, from those already measured."""
        peak_bytes = plain["peak_bytes"]
        rows = self.results.find(cell.model, cell.configuration, "ratio")
        fitting = [row for row in rows if row["status"] == "ok"]
        best = min(fitting, key=lambda row: float(row["ratio"]), default=None)
        high: float = best["ratio"] if best else 1.0
        if best is None:
            best = self._in_budget(cell, plain, high * peak_bytes)
        while best["status"] != "ok" and high < 4:
            high *= 1.25
            best = self._in_budget(cell, plain, high * peak_bytes)
        if best["status"] != "ok":
            return best
        low = max((row["ratio"] for row in rows if row["ratio"] < high), default=0.0)
        return smallest(lambda r: self._in_budget(cell, plain, r * peak_bytes), low, high, best)

    def _ask(self, cell: Cell, budget_bytes: int | None, plain: Row | None) -> Row:
        timeout_s, last = self._timeout_s, False
        if self._deadline is not None:
            left_s = self._deadline - time.monotonic()
            if left_s < _LEAST_S:
                raise OutOfTime
            timeout_s, last = min(timeout_s, left_s), left_s < timeout_s
        row = self._served(
            {
                **self.results.header["settings"],
                "model": cell.model,
                "configuration": cell.configuration,
                "budget_bytes": budget_bytes,
                "plain_step_ms": plain and plain["step_ms"]["median"],
                "plain_compute_ns": plain and plain.get("compute_ns"),
                "timeout_s": timeout_s,
            }
        )
        if last and row.get("reason", "").startswith("took longer"):
            raise OutOfTime
        return row

    def _served(self, request: Row) -> Row:
        if self._server is None:
            self._server = _start_server()
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        try:
            print(json.dumps(request), file=self._server.stdin, flush=True)
            line = self._server.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            errors = self._server.communicate()[1].strip().splitlines()[-1:] or ["no message"]
            raise BenchError(f"the process that starts the cells ended: {errors[0]}")
        row: Row = json.loads(line)
        return row


def smallest(measure: Callable[[float], Row], low: float, high: float, best: Row) -> Row:
    """Bisection between `low`, which does not fit, and `high`, which does and has the row `best`.

    Whether a budget fits is not strictly monotonic, so it goes on from there: what is found fits,
    and `MOST_MISSES` budgets below it, at most `SMALLEST_STEP` apart, do not.
    """
    while high - low > SMALLEST_STEP:
        middle = (low + high) / 2
        row = measure(middle)
        if row["status"] == "ok":
            best, high = row, middle
        else:
            low = middle
    misses = 1
    while misses < MOST_MISSES and (lower := high - (misses + 1) * SMALLEST_STEP) > 0:
        row = measure(lower)
        if row["status"] == "ok":
            best, high, misses = row, lower, 0
        else:
            misses += 1
    return best


def _start_server() -> subprocess.Popen[str]:
    environment = dict(os.environ)
    # benchmarks/ must be importable where the cells run.
    root = str(Path(workloads().__file__).resolve().parents[2])
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{root}{os.pathsep}{path}" if path else root
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Whoever asks in the server whether there is a GPU must not start CUDA.
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # A thread pool in the server would not survive the fork.
    environment["OPENBLAS_NUM_THREADS"] = "1"
    return subprocess.Popen(
        [sys.executable, "-m", "coop.bench.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _compared(row: Row, plain: Row, taken_bytes: int | None) -> Row:
    """The row with its relations to the plain one."""
    if taken_bytes is not None:
        row["memory_ratio"] = taken_bytes / plain["peak_bytes"]
    if row["status"] != "ok":
        return row
    row["identical"] = row["digest"] == plain["digest"]
    for name, field in (("overhead_wall", "step_ms"), ("overhead_cpu", "step_cpu_ms")):
        row[name] = row[field]["median"] / plain[field]["median"]
    if "compute_ns" in row:
        row["overhead_cost"] = row["compute_ns"] / plain["compute_ns"]
    return row
