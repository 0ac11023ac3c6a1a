"""One budget says little: extra compute of every policy as the mean of eleven budgets.

    python -m benchmarks.spread [NETWORK ...]

In the simulator, the last step of the traces of the paper-size networks. A mean is over the budgets
that fit; how many did is said where not all.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from coop.planner import Point, plan_trace
from coop.simulate import peak_without_limit
from coop.trace import read_trace

TRACES = Path(__file__).parent / "traces" / "paper"
NETWORKS = ("resnet50", "inception_v3", "unet", "swin", "bert_large", "spos", "densenet121")
POLICIES = ("coop", "dtr", "dte")
FIRST_PERCENT = (75, 65, 55, 45)  # of the peak; eleven budgets from there on, 1% apart
NUM_BUDGETS = 11


def cell(points: list[Point]) -> str:
    """The mean, with the number of budgets that fit where it is not all of them."""
    extras = [point.overhead - 1 for point in points if point.fits]
    if not extras:
        return "-"
    count = f" ({len(extras)})" if len(extras) < len(points) else ""
    return f"{statistics.mean(extras):.1%}{count}"


def main() -> int:
    """Prints a table."""
    ranges = [f"0.{first} to 0.{first + NUM_BUDGETS - 1}" for first in FIRST_PERCENT]
    print(f"| network, {' / '.join(POLICIES)} | {' | '.join(ranges)} |")
    print("| --- " * (1 + len(ranges)) + "|")
    for network in sys.argv[1:] or NETWORKS:
        trace = read_trace(TRACES / f"{network}.jsonl.gz")
        peak_bytes = peak_without_limit(trace)
        cells = []
        for first in FIRST_PERCENT:
            budgets = [peak_bytes * (first + k) // 100 for k in range(NUM_BUDGETS)]
            points = plan_trace(trace, budgets=budgets, policies=POLICIES).points
            cells.append(
                " / ".join(cell([p for p in points if p.policy == policy]) for policy in POLICIES)
            )
        print(f"| {network} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
