"""The results file: where and how it was measured, and a row for every cell that is done."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import threading
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.cells import POLICIES, BenchError, Cell
from coop.files import write_whole

__all__ = ["Results", "environment"]

_FORMAT = "coop-bench"
_VERSION = 2
_IDENTITY = ("key", "model", "configuration", "kind", "ratio", "label", "batch_size", "run")


class Results:
    """Rows by the key of their cell; written after every row, all or nothing.

    A file may be made by several runs (an interrupted sweep, more policies later): `runs` in the
    header has what each of them was, and `run` of a row says which one measured it.
    """

    def __init__(self, path: Path, header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.path = path
        self.header = header
        self.rows = {row["key"]: row for row in rows}
        self._lock = threading.Lock()  # cells may be measured at once

    @classmethod
    def open(cls, path: Path, command: str, check: str, settings: dict[str, Any]) -> Results:
        """A new file, or one to go on with: of the same check, measured in the same way."""
        if path.exists():
            results = cls.read(path)
            if results.header["check"] != check:
                raise BenchError(
                    f"{path} has the rows of {results.header['check']!r}, not of {check!r}: "
                    "choose another --out, or remove it"
                )
            if results.header["settings"] != settings:
                raise BenchError(
                    f"{path} was measured with other settings ({results.header['settings']}): "
                    "choose another --out, or remove it"
                )
        else:
            header = {
                "format": _FORMAT,
                "version": _VERSION,
                "check": check,
                "settings": settings,
                "runs": [],
            }
            results = cls(path, header, [])
        results.header["runs"].append({"command": command, **environment(settings["device"])})
        return results

    @classmethod
    def new(cls, path: Path, command: str, check: str, settings: dict[str, Any]) -> Results:
        """A new file, whatever was there."""
        path.unlink(missing_ok=True)
        return cls.open(path, command, check, settings)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises `BenchError` for what is not a results file."""
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            raise BenchError(f"{path}: there is no such file") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BenchError(f"{path}: not a results file ({error})") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise BenchError(
                f"{path}: not a results file of `python -m coop bench` or `python -m benchmarks`"
            )
        if data.get("version") != _VERSION:
            raise BenchError(f"{path}: version {data.get('version')} is not known, only {_VERSION}")
        rows = data.pop("rows")
        return cls(path, data, rows)

    def add(self, cell: Cell, row: dict[str, Any]) -> None:
        """Adds a row and writes the file; what was there stays whole until the new one is."""
        with self._lock:
            identity = {**cell.identity(), "run": len(self.header["runs"]) - 1}
            # The row may be one of another cell.
            own = {name: value for name, value in row.items() if name not in _IDENTITY}
            self.rows[cell.key] = {**identity, **own}
            self._write()

    def add_all(self, rows: list[dict[str, Any]]) -> None:
        """Adds rows that say which cell they are, and writes the file once."""
        with self._lock:
            run = len(self.header["runs"]) - 1
            self.rows |= {row["key"]: {**row, "run": run} for row in rows}
            self._write()

    def _write(self) -> None:
        data = {**self.header, "rows": list(self.rows.values())}
        try:
            write_whole(self.path, (json.dumps(data, indent=1) + "\n").encode())
        except OSError as error:
            raise BenchError(str(error)) from None

    def find(self, model: str, configuration: str, kind: str) -> list[dict[str, Any]]:
        """Rows of one network and configuration, in the order in which they were measured."""
        return [
            row
            for row in self.rows.values()
            if (row["model"], row["configuration"], row["kind"]) == (model, configuration, kind)
        ]

    def plain(self, model: str, batch_size: int | None = None) -> dict[str, Any] | None:
        """The row without a budget, if it is there and went well."""
        row = self.rows.get(Cell(model, "plain", "plain", batch_size=batch_size).key)
        return row if row and row["status"] == "ok" else None

    def at(self, model: str, configuration: str, ratio: float) -> dict[str, Any] | None:
        """The row of that cell, if it is there and went well."""
        row = self.row(model, configuration, ratio)
        return row if row and row["status"] == "ok" else None

    def row(self, model: str, configuration: str, ratio: float) -> dict[str, Any] | None:
        """The row of that cell, if it is there."""
        return self.rows.get(Cell(model, configuration, "ratio", ratio).key)

    def mean(self, model: str, configuration: str, field: str) -> float | None:
        """Over the budgets with forced allocations, those that every measured policy fits, so that
        all are compared alike."""
        policies = [name for name in POLICIES if self.find(model, name, "ratio")]
        values = []
        for ratio in self.ratios:
            row = self.at(model, configuration, ratio)
            if row is not None and all(self.at(model, name, ratio) for name in policies):
                values += [float(row[field])] if row["num_forced"] else []
        return sum(values) / len(values) if values else None

    def smallest(self, model: str, configuration: str) -> float | None:
        """The smallest budget found, as a share of the peak without one."""
        rows = self.find(model, configuration, "smallest")
        good = [row for row in rows if row["status"] == "ok"]
        return float(good[0]["memory_ratio"]) if good else None

    @property
    def models(self) -> list[str]:
        """Networks, in order."""
        return list(dict.fromkeys(row["model"] for row in self.rows.values()))

    @property
    def ratios(self) -> list[float]:
        """Budgets as shares of the peak, the largest first."""
        rows = [row for row in self.rows.values() if row["kind"] == "ratio"]
        return sorted({row["ratio"] for row in rows}, reverse=True)


def environment(device: str) -> dict[str, Any]:
    """Hardware, versions and the date."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
    }
    if device == "cuda":
        # Asked from outside: this process must not start CUDA for those it starts.
        found["gpu"] = _output(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        )
        found["cuda"] = torch.version.cuda
    return found


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    commit = _output("git", "rev-parse", "--short", "HEAD")
    # What is measured, not what is written: the results themselves may be new.
    changed = _output("git", "status", "--porcelain", "--", "coop", "csrc", "benchmarks/*.py")
    return commit + ("+" if commit and changed else "")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
