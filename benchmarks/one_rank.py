"""What DDP and FSDP2 cost inside a budget: one rank alone, beside the same budget without them.

    python -m benchmarks.one_rank                                        # on a GPU, NCCL
    python -m benchmarks.one_rank --name gpt3 --tiny --budgets 24MiB     # on the CPU, gloo

Every budget is a process, which trains without them, with DDP and with FSDP2, one after the other.
The overhead of a budget is its step over the step without one, with DDP or FSDP2 in both. With
`--bits` the last columns say whether losses and parameters have the bits of the same program
without a budget; times then mean little.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from typing import Any

import coop
from benchmarks import steady

WAYS = (None, "ddp", "fsdp2")


def measure(args: argparse.Namespace) -> None:
    """Prints the rows of one budget, in this process."""
    session = None
    if args.budget is not None and steady.DEVICE == "cuda":
        session = coop.install(args.budget)
    for way in WAYS:
        command = [args.name, "--steps", str(args.steps)]
        command += ["--tiny"] * args.tiny + ["--bits"] * args.bits
        command += ["--parallel", way] if way else []
        command += ["--budget", args.budget] if args.budget else []
        row = steady.row_of(steady.make_parser().parse_args(command), session)
        print(json.dumps(row), flush=True)
        gc.collect()  # hooks and modules are in cycles, and have parameters


def rows_of(args: argparse.Namespace, budget: str | None) -> list[dict[str, Any]]:
    """Those that a process for this budget has printed: what fails leaves none."""
    command = [sys.executable, "-m", "benchmarks.one_rank", "--worker", "--name", args.name]
    command += ["--steps", str(args.steps), *["--tiny"] * args.tiny, *["--bits"] * args.bits]
    command += ["--budget", budget] if budget else []
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(result.stdout, end="", flush=True)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def main() -> int:
    """Prints rows, and overheads as a table; 1 if bits differ or something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="llama_1b")
    parser.add_argument("--budgets", default="22GiB,14GiB")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--bits", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--budget", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        measure(args)
        return 0
    budgets = args.budgets.split(",")
    rows: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for budget in (None, *budgets):
        rows |= {(row.get("parallel"), budget): row for row in rows_of(args, budget)}
    wrong = 0
    print(f"{'':8s}{'plain ms':>10s}" + "".join(f"{budget:>22s}" for budget in budgets))
    for way in WAYS:
        plain = rows.get((way, None), {"ms": float("nan")})
        cells = []
        for budget in budgets:
            row = rows.get((way, budget))
            if row is None:
                cells.append("failed")
                wrong += 1
                continue
            same = "" if not args.bits else ", same bits"
            if row.get("bits") != plain.get("bits"):
                same, wrong = ", OTHER BITS", wrong + 1
            cells.append(f"{row['ms']:.1f} ({row['ms'] / plain['ms'] - 1:+.1%}){same}")
        print(f"{way or 'alone':8s}{plain['ms']:10.1f}", end="")
        print("".join(f"{cell:>22s}" for cell in cells))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
