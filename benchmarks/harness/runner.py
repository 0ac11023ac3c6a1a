"""Measures the cells that a results file does not have yet, each in a process of its own."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from benchmarks.harness.cells import WITHOUT, Cell
from benchmarks.harness.client import Server
from benchmarks.harness.results import Results

__all__ = ["SMALLEST_STEP", "OutOfTime", "Runner", "smallest"]

Row = dict[str, Any]

# The smallest budget is searched down to this share of the peak, and so many times further.
SMALLEST_STEP = 0.01
MOST_MISSES = 4
# Budgets are whole pages.
_GRAIN_BYTES = 4096
# A cell is not started with less time than this left: it would not come to its end.
_LEAST_S = 5.0


class OutOfTime(Exception):
    """The time for the whole run is over; what is missing can be measured later."""


class Runner:
    """Measures into one file. Use it as a context: it runs server processes.

    `report` gets every row that is measured. With `gives_up`, a cell whose steps recompute for much
    longer than a plain step is not waited for.
    """

    def __init__(
        self,
        results: Results,
        timeout_s: float,
        time_limit_s: float | None = None,
        at_once: int = 1,
        gives_up: bool = True,
        report: Callable[[Cell, Row], None] = lambda cell, row: None,
    ) -> None:
        self.results = results
        self.report = report
        self._timeout_s = timeout_s
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._gives_up = gives_up
        self._servers = [Server() for _ in range(at_once)]
        self._free: queue.Queue[Server] = queue.Queue()
        for server in self._servers:
            self._free.put(server)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """What is still to be done."""
        return [cell for cell in cells if cell.key not in self.results.rows]

    def measure(self, cell: Cell) -> Row:
        """The row of the cell, from the file if it is there. What goes wrong is a row too.

        Raises `OutOfTime` when the time limit is over, with the file as it was after the last cell.
        """
        return self.known(cell) or self.add(cell, self._measure(cell))

    def measure_all(self, cells: Iterable[Cell]) -> list[Row]:
        """As many at once as there are servers; then their times mean nothing."""
        if len(self._servers) == 1:
            return [self.measure(cell) for cell in cells]
        with ThreadPoolExecutor(len(self._servers)) as pool:
            return list(pool.map(self.measure, cells))

    def known(self, cell: Cell) -> Row | None:
        """The row of the cell, if the file has it."""
        return self.results.rows.get(cell.key)

    def add(self, cell: Cell, row: Row) -> Row:
        """Writes a row and reports it."""
        self.results.add(cell, row)
        self.report(cell, row)
        return self.results.rows[cell.key]

    @contextmanager
    def server(self) -> Iterator[Server]:
        """One that has nothing to do."""
        server = self._free.get()
        try:
            yield server
        finally:
            self._free.put(server)

    def request(self, cell: Cell, budget_bytes: int | str | None, **more: Any) -> Row:
        """What a server is asked for; raises `OutOfTime` when there is no time for it."""
        timeout_s = self._timeout_s
        if self._deadline is not None:
            timeout_s = min(timeout_s, self._deadline - time.monotonic())
            if timeout_s < _LEAST_S:
                raise OutOfTime
        return {
            **self.results.header["settings"],
            "model": cell.model,
            "batch_size": cell.batch_size,
            "configuration": cell.configuration,
            "kind": cell.kind,
            "budget_bytes": budget_bytes,
            "timeout_s": timeout_s,
            **more,
        }

    def ask(self, cell: Cell, budget_bytes: int | str | None, **more: Any) -> Row:
        """The row of the cell in that budget, from a server."""
        with self.server() as server:
            request = self.request(cell, budget_bytes, **more)
            row = server.ask(request)
        is_last = request["timeout_s"] < self._timeout_s
        if is_last and row.get("reason", "").startswith("took longer"):
            raise OutOfTime
        return row if budget_bytes is None else {"budget_bytes": budget_bytes, **row}

    def _measure(self, cell: Cell) -> Row:
        plain = self.results.plain(cell.model, cell.batch_size)
        if cell.kind == "operators" or (cell.kind, cell.configuration) == ("plain", "plain"):
            return self.ask(cell, None)
        if cell.kind == "budget":
            assert cell.budget_bytes is not None
            return self._in_budget(cell, plain, cell.budget_bytes)
        if plain is None:
            reason = "there is nothing to compare with: the plain run failed"
            return {"status": "failed", "reason": reason}
        if cell.kind == "plain":
            row = self.ask(cell, None)
            return _compared(cell, row, plain, row.get("peak_bytes"))
        if cell.kind == "smallest":
            return self._smallest(cell, plain)
        assert cell.ratio is not None
        whole_bytes = plain["peak_bytes"]
        if cell.kind == "reserved":
            whole_bytes = plain.get("peak_reserved_bytes", whole_bytes)
        return self._in_budget(cell, plain, cell.ratio * whole_bytes)

    def _in_budget(self, cell: Cell, plain: Row | None, num_bytes: float) -> Row:
        budget_bytes = -(-int(num_bytes) // _GRAIN_BYTES) * _GRAIN_BYTES
        limits: Row = {}
        if plain is not None and self._gives_up and cell.configuration not in WITHOUT:
            limits["plain_step_ms"] = plain["step_ms"]["median"]
            limits["plain_compute_ns"] = plain.get("all_compute_ns")
        row = self.ask(cell, budget_bytes, **limits)
        return row if plain is None else _compared(cell, row, plain, budget_bytes)

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


def _compared(cell: Cell, row: Row, plain: Row, taken_bytes: int | None) -> Row:
    """The row with its relations to the plain one."""
    if taken_bytes is not None:
        row["memory_ratio"] = taken_bytes / plain["peak_bytes"]
    if row["status"] != "ok":
        return row
    if "digest" in row and "digest" in plain:
        row["identical"] = row["digest"] == plain["digest"]
        # Checkpointing runs a norm twice, which then has other running statistics.
        if cell.configuration != "checkpoint":
            row["identical"] &= row["buffers_digest"] == plain["buffers_digest"]
    for name, field in (("overhead_wall", "step_ms"), ("overhead_cpu", "step_cpu_ms")):
        row[name] = row[field]["median"] / plain[field]["median"]
    if "all_compute_ns" in row:
        # Checkpointing on the CPU: the operators that it runs again are the program's own.
        row["overhead_cost"] = row["all_compute_ns"] / plain["all_compute_ns"]
    return row
