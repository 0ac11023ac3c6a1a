"""Compiled networks in a budget, beside what compile can do by itself: rows of `benchmarks.steady`.

    python -m benchmarks.compiled --minutes 4 --out FILE              # on a GPU, as often as needed
    python -m benchmarks.compiled --only llama_1b --minutes 4 --out FILE
    python -m benchmarks.compiled --tiny --only llama_1b --minutes 1  # a look, on a CPU
    python -m benchmarks.compiled --out FILE --table                  # what is there

Each cell is a process of its own; the next one gets ready while one is measured. What tells most
comes first; a run goes on with what the file lacks, and begins nothing that would end after its
minutes. What inductor compiles is shared by the cells of a run (`TORCHINDUCTOR_CACHE_DIR`), but
for those called *cold*, which say how long it takes to compile.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SHARE = "--compile block --activation-memory-budget"
# As many seconds as a cell may take before the next one is not begun any more.
LONGEST_S = 60


@dataclass(frozen=True)
class Cell:
    """One process. `budget`: a size, or another cell of the model, whose reserved bytes it gets."""

    name: str
    options: str
    budget: str = ""

    def arguments(self, rows: dict[str, Row], model: str) -> list[str] | None:
        """Of `benchmarks.steady`; None: what it needs was not measured."""
        found = [model, *self.options.split()]
        if self.budget:
            budget = self.budget
            if not budget.endswith("GiB"):
                other = rows.get(f"{model}: {budget}")
                if other is None or "reserved_gib" not in other:
                    return None
                budget = f"{other['reserved_gib']}GiB"
            found += ["--budget", budget]
        return found


def cells_of(how: str, room: str) -> tuple[Cell, ...]:
    """Compiled by block, or as a whole."""
    share = f"--compile {how} --activation-memory-budget"
    return (
        Cell(how, f"--compile {how}"),
        Cell(f"{how}, coop with room", f"--compile {how}", room),
        Cell(f"{how}, 0.5", f"{share} 0.5"),
        Cell(f"{how}, coop in what 0.5 takes", f"--compile {how}", f"{how}, 0.5"),
        Cell(f"{how}, 0.25", f"{share} 0.25"),
        Cell(f"{how}, coop in what 0.25 takes", f"--compile {how}", f"{how}, 0.25"),
        Cell(f"{how}, 0.75", f"{share} 0.75"),
        Cell(f"{how}, coop in what 0.75 takes", f"--compile {how}", f"{how}, 0.75"),
    )


def cells(room: str, below: str) -> tuple[Cell, ...]:
    """Of a model: with room for everything, and below what compile reaches by itself."""
    block = cells_of("block", room)
    whole = cells_of("whole", room)
    least = (
        Cell("block, coop below", "--compile block", below),
        Cell("block, coop below, copies", "--compile block --host 64GiB", below),
        Cell("block, checkpoint", "--compile block --checkpoint"),
        Cell("block, 0.5, coop below", f"{SHARE} 0.5", below),
        Cell("block, 0.25, coop below", f"{SHARE} 0.25", below),
        Cell("block, 0.25, coop below, copies", f"{SHARE} 0.25 --host 64GiB", below),
        Cell("eager, coop below", "", below),
    )
    bits = (
        Cell("block, bits", "--compile block --bits --steps 10"),
        Cell("block, coop below, bits", "--compile block --bits --steps 10", below),
    )
    cold = (
        Cell("block, cold", "--compile block --steps 2"),
        Cell("block, coop with room, cold", "--compile block --steps 2", room),
    )
    first = (*block[:2], *least[:2], *block[2:4], *least[2:])
    return (*first, *whole[:4], *bits, *cold, *block[4:], *whole[4:])


MODELS = {
    "llama_1b": cells("32GiB", "12GiB"),
    "hf_gpt2": cells("40GiB", "12GiB"),
    "hf_bert": cells("40GiB", "9GiB"),
    "resnet50": cells("24GiB", "5GiB"),
}


class Waiting:
    """A process that has imported everything and waits for what to measure."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compiled", "--wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, arguments: list[str], cache: str) -> Row:
        """`benchmarks.steady`'s row, or why there is none."""
        output, _ = self._process.communicate(json.dumps([cache, *arguments]) + "\n")
        found = [line for line in output.splitlines() if line.startswith("{")]
        row: Row = json.loads(found[-1]) if found else {"failed": "it ended without a word"}
        return row

    def end(self) -> None:
        """There is nothing left to measure."""
        self._process.communicate("")


def wait_and_measure() -> None:
    """What such a process does. Inductor is imported when its cache is known."""
    from benchmarks import steady

    importlib.import_module("transformers")
    line = sys.stdin.readline()
    if not line:
        return
    os.environ["TORCHINDUCTOR_CACHE_DIR"], *arguments = json.loads(line)
    sys.argv = ["benchmarks.steady", *arguments]
    try:
        steady.main()
    except BaseException:
        print(json.dumps({"failed": traceback.format_exc()[-600:]}), flush=True)


def missing(rows: dict[str, Row], only: str | None) -> Iterator[tuple[str, Cell]]:
    """In the order in which they are measured."""
    for model, of_model in MODELS.items():
        for cell in of_model:
            if only in (None, model) and f"{model}: {cell.name}" not in rows:
                yield model, cell


def print_table(rows: dict[str, Row]) -> None:
    """Of all rows."""
    print("| cell | ms | reserved GiB | budget | first step s | replays a step | followed |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for key, row in rows.items():
        if "failed" in row:
            print(f"| {key} | {row['failed'].splitlines()[-1][:90]} | | | | | |")
            continue
        values = [row["ms"], row.get("reserved_gib", ""), row["budget"] or ""]
        values += [row["first_ms"][0] / 1e3, row.get("last_num_replays", "")]
        print("|", key, "|", " | ".join(map(str, [*values, row.get("num_followed", "")])), "|")


def main() -> None:
    """Measures what the file lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--out", type=Path, help="rows of before and after, by cell")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--table", action="store_true", help="print it, and measure nothing")
    parser.add_argument("--wait", action="store_true", help="for a cell's own process")
    args = parser.parse_args()
    if args.wait:
        wait_and_measure()
        return
    rows: dict[str, Row] = {}
    if args.out is not None and args.out.exists():
        rows = json.loads(args.out.read_text())
    end = time.monotonic() + 60 * args.minutes
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(tempfile.TemporaryDirectory())
        ready = None if args.table else Waiting()
        for model, cell in () if args.table else missing(rows, args.only):
            arguments = cell.arguments(rows, model)
            if arguments is None:
                continue
            if time.monotonic() + LONGEST_S > end and not args.tiny:
                break
            if time.monotonic() > end:
                break
            cache = shared
            if cell.name.endswith("cold"):
                cache = stack.enter_context(tempfile.TemporaryDirectory())
            begin = time.monotonic()
            process, ready = ready or Waiting(), Waiting()
            row = process.measure(arguments + ["--tiny"] * args.tiny, cache)
            row["seconds"] = round(time.monotonic() - begin, 1)
            rows[f"{model}: {cell.name}"] = row
            print(f"{model}: {cell.name}", json.dumps(row), file=sys.stderr, flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps(rows, indent=1))
        if ready is not None:
            ready.end()
    print_table(rows)


if __name__ == "__main__":
    main()
