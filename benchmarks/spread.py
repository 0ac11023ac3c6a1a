"""One budget says little: extra compute of every policy as the mean of eleven budgets.

    python -m benchmarks.spread [NETWORK ...]

In the simulator, on the traces of the paper-size networks. A mean is over the budgets that fit; how
many did is said where not all.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from coop.planner import peak_without_limit
from coop.simulate import Options, simulate
from coop.trace import Trace, read_trace

TRACES = Path(__file__).parent / "traces" / "paper"
NETWORKS = ("resnet50", "inception_v3", "unet", "swin", "bert_large", "spos", "densenet121")
POLICIES = ("coop", "dtr", "dte")
FIRST_PERCENT = (75, 65, 55, 45)  # of the peak; eleven budgets from there on, 1% apart
NUM_BUDGETS = 11


def extra_compute(trace: Trace, policy: str, budget_bytes: int) -> float | None:
    """Recomputed over asked for; None when it does not fit."""
    options = Options(policy, alignment=trace.header.alignment)
    result = simulate(trace, budget_bytes, options, most_replay=5)
    return result.stats["replay_ns"] / result.stats["compute_ns"] if result.fitted else None


def cell(trace: Trace, policy: str, first_percent: int) -> str:
    """The mean, with the number of budgets that fit where it is not all of them."""
    peak_bytes = peak_without_limit(trace)
    percents = range(first_percent, first_percent + NUM_BUDGETS)
    all_extras = [extra_compute(trace, policy, peak_bytes * p // 100) for p in percents]
    extras = [extra for extra in all_extras if extra is not None]
    if not extras:
        return "-"
    count = f" ({len(extras)})" if len(extras) < NUM_BUDGETS else ""
    return f"{statistics.mean(extras):.1%}{count}"


def main() -> int:
    """Prints a table."""
    ranges = [f"0.{first} to 0.{first + NUM_BUDGETS - 1}" for first in FIRST_PERCENT]
    print(f"| network, {' / '.join(POLICIES)} | {' | '.join(ranges)} |")
    print("| --- " * (1 + len(ranges)) + "|")
    for network in sys.argv[1:] or NETWORKS:
        trace = read_trace(TRACES / f"{network}.jsonl.gz")
        cells = [
            " / ".join(cell(trace, policy, first) for policy in POLICIES) for first in FIRST_PERCENT
        ]
        print(f"| {network} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
