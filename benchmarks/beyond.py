"""What a step pays beyond recomputing: a table, with a line for each network and budget.

    python -m benchmarks.beyond llama_1b=14.5GiB t5_base=9GiB       # on a GPU, at full size
    python -m benchmarks.beyond --tiny resnet50=50% bert_large=50%  # shares of what it needs

Each network trains in three processes (`benchmarks.steady`): in plain torch, in a budget with room
for everything, and in the budget. Shares are of the plain step:

- *recording*: the step with room for everything, less the plain one. The engine's own work, and no
  more: nothing is evicted.
- *recomputing*: what replayed operators cost, as measured when they ran first.
- *searching*: time in searches for room. *moving*: bytes moved within the arena, at the speed of a
  copy on this device. Both are nothing once a schedule is followed.
- *the rest*: what is left. Launches of replays and what the engine does for each, and waits.

A step whose *launching* takes nearly all of it is bound by the host. On the CPU steps are measured
in CPU time, since other processes run beside them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch

from benchmarks.steady import DEVICE
from coop.sizes import parse_bytes, parse_share

Row = dict[str, Any]
HEADER = (
    "network",
    "budget",
    "plain ms",
    "step",
    "recording",
    "recomputing",
    "searching",
    "moving",
    "the rest",
    "launching",
    "operators",
    "replays",
    "engine us/op",
)
COPY_BYTES = 2**28
# What of a row a step takes, and what of that is the host's.
STEP, HOST = ("ms", "launch_ms") if DEVICE == "cuda" else ("cpu_ms", "cpu_ms")


def row_of(name: str, budget_bytes: int | None, args: argparse.Namespace) -> Row:
    """Trains it in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.steady", name, "--steps", str(args.steps)]
    command += ["--tiny"] if args.tiny else []
    command += [] if budget_bytes is None else ["--budget", str(budget_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def copy_bytes_per_ms() -> float:
    """How much a copy within the device's memory moves."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        target.copy_(source)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return COPY_BYTES / (1e3 * best)


def line(name: str, budget: str, plain: Row, roomy: Row, tight: Row, speed: float) -> list[str]:
    """One network: see the module."""
    step, least = tight[STEP], plain[STEP]
    shares = {
        "step": step / least - 1,
        "recording": roomy[STEP] / least - 1,
        "recomputing": tight["replay_share"],
        "searching": tight["last_search_ns"] / 1e6 / least,
        "moving": tight["last_moved_bytes"] / speed / least,
    }
    rest = shares["step"] - sum(share for key, share in shares.items() if key != "step")
    added = roomy[HOST] - plain[HOST]
    return [
        name,
        budget,
        f"{least:.1f}",
        *(f"{share:+.1%}" for share in (*shares.values(), rest)),
        f"{tight[HOST] / step:.0%}",
        str(tight["last_num_operators"]),
        str(tight["last_num_replays"]),
        f"{1e3 * added / roomy['last_num_operators']:.2f}",
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="+", metavar="NAME=BUDGET")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    room = "120GiB" if DEVICE == "cuda" else "8GiB"
    parser.add_argument("--room", default=room, help="a budget with room for everything")
    args = parser.parse_args()
    speed = copy_bytes_per_ms()
    print("| " + " | ".join(HEADER) + " |\n" + "| --- " * len(HEADER) + "|")
    for cell in args.cells:
        name, _, budget = cell.partition("=")
        plain = row_of(name, None, args)
        roomy = row_of(name, parse_bytes(args.room), args)
        share = parse_share(budget)
        budget_bytes = parse_bytes(budget) if share is None else int(share * roomy["peak_bytes"])
        tight = row_of(name, budget_bytes, args)
        print("| " + " | ".join(line(name, budget, plain, roomy, tight, speed)) + " |", flush=True)


if __name__ == "__main__":
    main()
