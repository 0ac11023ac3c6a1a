"""Runs what is missing of all peers on all models, each in a process of its own.

Without `--within`: at each model's own batch, and coop in shares of what plain torch takes. With
it: all peers in so much memory, at each of `--batches`; `throughput.py` has the best of them.

Every row is written when it is measured, and the same command goes on with what is missing: with
`--minutes` in slices. A cell that fails is a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers.ways import WAYS, WAYS_WITHIN, Way
from coop.files import write_whole
from coop.sizes import parse_bytes

# Name and batch (None: its own).
MODELS: dict[str, tuple[tuple[str, int | None], ...]] = {
    "tiny": (("gpt3", 4), ("unet", 2)),
    "paper": (
        ("llama_1b", None),
        ("hf_gpt2", None),
        ("hf_bert", None),
        ("tv_resnet50", None),
        ("unet", None),
        ("lstm", None),
        ("whisper_small", None),
        ("t5_base", None),
        ("vit_large", None),
        ("convnext_base", None),
        ("qwen3", None),
        ("mixtral", None),
        ("diffusion_unet", None),
    ),
}
# Models that take turns, way by way; then the next so many.
NUM_FIRST = 4
# Importing takes longer than measuring: the next ones get ready where there are cores for it.
NUM_READY = 2 if (os.cpu_count() or 1) < 8 else 4
# Of one cell.
MOST_SECONDS = {"tiny": 600, "paper": 300}


def main() -> int:
    """0: nothing is missing any more; 3: the time of this slice is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("tiny", "paper"), default="paper")
    parser.add_argument("--models", help="a,b: only these")
    parser.add_argument("--within", type=parse_bytes, help="a size: what each may take")
    parser.add_argument("--batches", type=sizes, default=[None], help="a,b: batches, in order")
    parser.add_argument("--minutes", type=float, default=1e9, help="of this slice")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else []
    known = {key_of(row) for row in rows}
    names = args.models.split(",") if args.models else [name for name, _ in MODELS[args.size]]
    batches = dict(MODELS[args.size])
    ways = WAYS if args.within is None else WAYS_WITHIN
    missing = [
        (order(names.index(name), way), cell)
        for name in names
        for way in ways
        for batch in args.batches
        for cell in [Cell(name, batch or batches.get(name), way, args.size, args.within)]
        if (args.size != "tiny" or way.is_quick) and key_of(cell.row) not in known
    ]
    cells = [cell for _, cell in sorted(missing, key=lambda each: each[0])]
    return run_cells(cells, rows, args.out, args.minutes)


def run_cells(cells: Iterable[Cell], rows: list[dict[str, Any]], out: Path, minutes: float) -> int:
    """Measures them in order, and writes each row when it is there. As `main`."""
    end = time.monotonic() + 60 * minutes
    cells = deque(cells)
    try:
        while cells:
            if time.monotonic() > end:
                print("the time of this slice is over: the same command goes on", flush=True)
                return 3
            for cell in list(cells)[:NUM_READY]:
                cell.start()  # the next ones get ready meanwhile
            rows.append(cells.popleft().measure(rows))
            write_whole(out, (json.dumps(rows, indent=1) + "\n").encode())
            print(describe(rows[-1]), flush=True)
    finally:
        for cell in cells:
            cell.stop()
    return 0


def order(index: int, way: Way) -> tuple[int, int, int]:
    """What tells most comes first: of the first models the ways of turn 0, then of 1; then others.

    Within that, all of one model: what is compiled for one way is there for the next.
    """
    return index // NUM_FIRST, way.turn, index


class Cell:
    """One row, and the process that measures it."""

    def __init__(
        self,
        model: str,
        batch: int | None,
        way: Way,
        size: str,
        within: int | None,
        *options: str,
    ) -> None:
        self._way = way
        self._size = size
        self._within = within
        self.row: dict[str, Any] = {"model": model, "way": way.label, "peer": way.name}
        self.row |= {"size": size, "within_bytes": within, "asked_batch": batch}
        self._command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers.cell", model]
        self._command += [way.label, "--size", size]
        self._command += [] if batch is None else ["--batch", str(batch)]
        self._command += options
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """It imports what it needs, and waits."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment()
            )

    def stop(self) -> None:
        """It is not wanted any more."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def measure(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The row."""
        assert self._process is not None
        of = [r for r in rows if (r["model"], r["way"]) == (self.row["model"], self._way.of)]
        whole = self._within or (of[0].get("memory_bytes", 0) if of else 0)
        if self._way.share and not whole:
            self.stop()
            return {
                **self.row,
                "why_not": f"{self._way.of} does not run: no share of what it takes",
            }
        begin = time.monotonic()
        line = f"{whole} {self._within or 0}\n"
        try:
            output, errors = self._process.communicate(line, MOST_SECONDS[self._size])
        except subprocess.TimeoutExpired:
            self.stop()
            return {**self.row, "why_not": f"not done in {MOST_SECONDS[self._size]} s"}
        lines = output.splitlines()
        if self._process.returncode == 0 and lines:
            row = {**self.row, **json.loads(lines[-1])}
        else:
            code = f"exit code {self._process.returncode}"
            row = {**self.row, "why_not": (errors.strip().splitlines() or [code])[-1]}
        return {**row, "took_seconds": round(time.monotonic() - begin, 1)}


def environment() -> dict[str, str]:
    """Of a cell: what is compiled is kept for the next one."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "COOP_QUIET": "1"}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a cell's row from all others."""
    return row["model"], row["way"], row["within_bytes"], row["asked_batch"]


def sizes(text: str) -> list[int]:
    """Of `--batches`."""
    return [int(part) for part in text.split(",")]


def describe(row: dict[str, Any]) -> str:
    """A line for people."""
    name = f"{row['model']:12} {row['way']:30}"
    if row["within_bytes"] is not None:
        name += f" batch {row['asked_batch']:4}"
    if "why_not" in row:
        return f"{name} {row['why_not'][:90]}"
    return f"{name} {row['ms']:9.1f} ms {row['memory_bytes'] / 2**20:9.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
