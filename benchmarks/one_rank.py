"""What DDP and FSDP2 cost inside a budget: one rank alone, beside the same budget without them.

    python -m benchmarks.one_rank                                        # on a GPU, NCCL
    python -m benchmarks.one_rank --name gpt3 --tiny --budgets 24MiB     # on the CPU, gloo

Every row is a process of `benchmarks.steady`. The overhead of a budget is its step over the step
without one, with DDP or FSDP2 in both. With `--bits` the last two columns say whether losses and
parameters have the bits of the same program without a budget; times then mean little.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

WAYS = (None, "ddp", "fsdp2")


def measure(args: argparse.Namespace, way: str | None, budget: str | None) -> dict[str, Any]:
    """The row of one process."""
    command = [sys.executable, "-m", "benchmarks.steady", args.name, "--steps", str(args.steps)]
    command += ["--tiny"] * args.tiny + ["--bits"] * args.bits
    command += ["--parallel", way] if way else []
    command += ["--budget", budget] if budget else []
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = result.stdout.splitlines()
    # A row is an object; what does not fit or fails leaves none.
    row: dict[str, Any] = json.loads(lines[-1]) if result.returncode == 0 else {"failed": True}
    print(json.dumps(row), flush=True)
    return row


def main() -> int:
    """Prints rows, and overheads as a table; 1 if bits differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="llama_1b")
    parser.add_argument("--budgets", default="22GiB,14GiB")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--bits", action="store_true")
    args = parser.parse_args()
    budgets = args.budgets.split(",")
    rows = {(way, b): measure(args, way, b) for way in WAYS for b in (None, *budgets)}
    wrong = 0
    print(f"{'':8s}{'plain ms':>10s}" + "".join(f"{budget:>22s}" for budget in budgets))
    for way in WAYS:
        plain = rows[way, None]
        cells = []
        for budget in budgets:
            row = rows[way, budget]
            if "ms" not in row or "ms" not in plain:
                cells.append("failed")
                continue
            same = "" if not args.bits else ", same bits"
            if row.get("bits") != plain.get("bits"):
                same, wrong = ", OTHER BITS", wrong + 1
            cells.append(f"{row['ms']:.1f} ({row['ms'] / plain['ms'] - 1:+.1%}){same}")
        print(f"{way or 'alone':8s}{plain.get('ms', float('nan')):10.1f}", end="")
        print("".join(f"{cell:>22s}" for cell in cells))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
