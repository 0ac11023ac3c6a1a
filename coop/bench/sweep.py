"""Runs all cells that a results file does not have yet, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coop.bench.cells import BenchError, Cell, workloads
from coop.bench.results import Results

__all__ = ["SMALLEST_STEP", "Sweep"]

# The smallest budget is searched down to this share of the peak.
SMALLEST_STEP = 0.01
# Budgets are whole pages.
_GRAIN_BYTES = 4096


class Sweep:
    """A plan of cells and the file they go to."""

    def __init__(
        self, results: Results, cells: Sequence[Cell], threads: int, timeout_s: float
    ) -> None:
        self.results = results
        self.cells = list(cells)
        self.threads = threads
        self.timeout_s = timeout_s
        # benchmarks/ must be importable where the workers run.
        self.root = Path(workloads().__file__).resolve().parents[2]

    @property
    def missing(self) -> list[Cell]:
        """What is still to be done."""
        return [cell for cell in self.cells if cell.key not in self.results.rows]

    def run(self, report: Callable[[Cell, dict[str, Any]], None]) -> None:
        """Measures what is missing; `report` gets every row. What goes wrong becomes a row too."""
        for cell in self.missing:
            row = self.measure(cell)
            self.results.add(cell, row)
            report(cell, self.results.rows[cell.key])

    def measure(self, cell: Cell) -> dict[str, Any]:
        """The row of one cell."""
        if cell.kind == "plain":
            row = self._ask(cell, None)
            plain = self.results.plain(cell.model)
            if row["status"] == "ok" and plain is not None:
                row["overhead_wall"] = row["step_ms"]["median"] / plain["step_ms"]["median"]
                row["identical"] = row["digest"] == plain["digest"]
                row["memory_ratio"] = row["peak_bytes"] / plain["peak_bytes"]
                if "compute_ns" in row:
                    row["overhead_cost"] = row["compute_ns"] / plain["compute_ns"]
            return row
        plain = self.results.plain(cell.model)
        if plain is None:
            return {
                "status": "failed",
                "reason": "there is nothing to compare with: the plain run failed",
            }
        if cell.kind == "smallest":
            return self._smallest(cell, plain)
        assert cell.ratio is not None
        return self._in_budget(cell, plain, _rounded(cell.ratio * plain["peak_bytes"]))

    def _in_budget(
        self, cell: Cell, plain: dict[str, Any], budget_bytes: int, probe: bool = False
    ) -> dict[str, Any]:
        # On a GPU the plain steps need another allocator, hence another process: the plain row's.
        with_plain = cell.device == "cpu" and not probe
        row = self._ask(cell, budget_bytes, plain.get("compute_ns"), with_plain)
        row["budget_bytes"] = budget_bytes
        row["memory_ratio"] = budget_bytes / plain["peak_bytes"]
        if row["status"] == "ok":
            row["identical"] = row["digest"] == plain["digest"]
            row.setdefault("overhead_wall", row["step_ms"]["median"] / plain["step_ms"]["median"])
        return row

    def _smallest(self, cell: Cell, plain: dict[str, Any]) -> dict[str, Any]:
        """Bisection. Whether a budget fits is not strictly monotonic: what is found fits, and a
        budget one step below it does not."""
        step = SMALLEST_STEP * plain["peak_bytes"]
        low, high = 0.0, float(plain["peak_bytes"])
        best = self._in_budget(cell, plain, _rounded(high), probe=True)
        while best["status"] != "ok" and high < 4 * plain["peak_bytes"]:
            low, high = high, 1.25 * high
            best = self._in_budget(cell, plain, _rounded(high), probe=True)
        if best["status"] != "ok":
            return best
        probes = 1
        while high - low > step:
            middle = (low + high) / 2
            row = self._in_budget(cell, plain, _rounded(middle), probe=True)
            probes += 1
            if row["status"] == "ok":
                best, high = row, middle
            else:
                low = middle
        best["probes"] = probes
        return best

    def _ask(
        self,
        cell: Cell,
        budget_bytes: int | None,
        compute_ns: float | None = None,
        with_plain: bool = False,
    ) -> dict[str, Any]:
        request = {
            **cell.as_dict(),
            "budget_bytes": budget_bytes,
            "compute_ns": compute_ns,
            "with_plain": with_plain,
            "threads": self.threads,
        }
        environment = dict(os.environ)
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{self.root}{os.pathsep}{path}" if path else str(self.root)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "coop.bench.worker"],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return {"status": "failed", "reason": f"took longer than {self.timeout_s:g} s"}
        except OSError as error:
            raise BenchError(f"cannot start a process for a cell: {error}") from None
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            row: dict[str, Any] = json.loads(lines[-1])
            return row
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return {"status": "failed", "reason": f"exit code {done.returncode}: {last[0]}"}


def _rounded(num_bytes: float) -> int:
    return int(-(-num_bytes // _GRAIN_BYTES)) * _GRAIN_BYTES
