"""Checks and measures the engine, every cell in a process of its own: `python -m benchmarks CHECK`.

    identical   the same bits as plain torch, down to small budgets
    full        step time with room for everything, alternating with plain torch
    curve       step time against budget, beside checkpointing
    limits      the largest batch in a budget; a model that plain torch cannot train there
    smallest    the smallest budget that trains
    predict     the simulator's step times against measured ones
    overhead    microseconds that the engine adds to an operator

The paper's sweep is `python -m coop bench`. Each check writes rows (benchmarks/README.md) and
prints tables; `python -m coop plot` writes them again. Rows that the file has are not measured
again.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import models
from benchmarks.harness import checks
from benchmarks.harness.arguments import (
    configurations,
    known_names,
    line,
    positive,
    ratios,
    reporting,
)
from benchmarks.harness.predict import predict
from benchmarks.harness.results import Results
from benchmarks.harness.runner import Runner
from benchmarks.harness.tables import print_tables
from coop.commands._arguments import size

GIB = 2**30
# Of what plain torch reserves.
RATIOS = "1,0.6,0.5,0.4,0.35,0.3,0.25,0.2"
# Batches that plain torch can train in 16 GiB of an H200, and such as it cannot.
BATCHES = "tv_resnet50:320:384:1024:1152,hf_gpt2:4:5:16:18"


@dataclass(frozen=True)
class Check:
    """How one of the checks is measured."""

    run: Callable[[Runner, argparse.Namespace], None]
    steps: int
    warmup: int
    deterministic: bool = False
    # Several cells at once where their times do not count.
    at_once: int = 1
    # Pairs of processes need two servers and one cell at a time.
    num_servers: int | None = None
    gives_up: bool = False


def _full(runner: Runner, args: argparse.Namespace) -> None:
    cells = [(name, None) for name in args.models]
    if args.size == "paper":  # bound by the CPU alone
        cells.insert(0, ("tv_resnet50", 64))
    checks.full(runner, cells, args.rounds, args.pairs, args.cores)


def _limits(runner: Runner, args: argparse.Namespace) -> None:
    checks.limits(runner, args.batches, args.budget)
    if args.large:
        checks.large(runner, args.large, args.large_budget)


CHECKS = {
    "identical": Check(
        lambda runner, args: checks.identical(runner, args.models, args.ratios),
        steps=3,
        warmup=1,
        deterministic=True,
        at_once=5,
    ),
    "full": Check(_full, steps=2, warmup=6, num_servers=2),
    "curve": Check(lambda runner, args: checks.curve(runner, args.models), steps=10, warmup=3),
    "limits": Check(_limits, steps=2, warmup=1, at_once=5),
    "smallest": Check(
        lambda runner, args: checks.smallest(runner, args.models, args.policies),
        steps=3,
        warmup=2,
        deterministic=True,
        gives_up=True,
    ),
    "predict": Check(lambda runner, args: predict(runner, args.models), steps=5, warmup=2),
    "overhead": Check(lambda runner, args: checks.overhead(runner, args.device), steps=1, warmup=0),
}


def main() -> int:
    """Runs one check and prints its tables."""
    args = _arguments()
    check = CHECKS[args.check]
    args.steps = args.steps or check.steps
    at_once = args.at_once or check.at_once
    out = args.out or Path("build") / f"{args.device}-{args.check}.json"
    settings = {
        "size": args.size,
        "device": args.device,
        "steps": args.steps,
        "warmup": check.warmup,
        "threads": args.threads,
        "deterministic": check.deterministic,
    }
    with reporting(f"benchmarks {args.check}", out) as outcome:
        known_names(args.models)
        out.parent.mkdir(parents=True, exist_ok=True)
        command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
        results = Results.open(out, command, args.check, settings)
        if at_once > 1:
            results.header["runs"][-1]["note"] = (
                f"up to {at_once} cells at once: their times mean nothing, nor what the driver "
                "says of the whole device"
            )
        runner = Runner(
            results,
            args.timeout,
            args.time_limit,
            check.num_servers or at_once,
            check.gives_up,
            lambda cell, row: print(line(cell, row), file=sys.stderr, flush=True),
        )
        with runner:
            check.run(runner, args)
    if outcome.code is not None:
        return outcome.code
    print_tables(results)
    print(f"wrote {out}")
    wrong = [row["key"] for row in results.rows.values() if row.get("identical") is False]
    if wrong:
        print(f"OTHER BITS than plain torch: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--size", choices=("tiny", "paper"), default="paper")
    parser.add_argument(
        "--models",
        metavar="NAME,…",
        type=lambda text: [name for name in text.split(",") if name],
        default=models.PRACTICE,
        help=f"default: {','.join(models.PRACTICE)}",
    )
    parser.add_argument("--steps", metavar="N", type=positive, help="measured steps of a cell")
    parser.add_argument("--threads", metavar="N", type=positive, default=1, help="of torch")
    parser.add_argument("--timeout", metavar="SECONDS", type=positive, default=240)
    parser.add_argument("--time-limit", metavar="SECONDS", type=positive, help="for all of it")
    parser.add_argument("--at-once", metavar="N", type=positive, help="cells at once")
    parser.add_argument("--out", metavar="FILE.json", type=Path, help="default: in build/")
    parser.add_argument("--ratios", type=ratios, default=ratios(RATIOS), help="for identical")
    parser.add_argument(
        "--policies", type=configurations, default=["coop"], help="for smallest: coop,dtr,…"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="of a pair, for full")
    parser.add_argument("--pairs", type=positive, default=1, help="of processes, for full")
    parser.add_argument("--cores", type=_cores, default=checks.CORES, help="for full; default: 2,3")
    parser.add_argument(
        "--batches", type=_batches, default=_batches(BATCHES), help=f"for limits: {BATCHES}"
    )
    parser.add_argument("--budget", type=size, default=16 * GIB, help="for limits: 16GiB")
    parser.add_argument(
        "--large", default="hf_gpt2_2.7b", help="for limits: one network alone, or nothing"
    )
    parser.add_argument("--large-budget", type=size, default=56 * GIB, help="for limits: 56GiB")
    return parser.parse_args()


def _cores(text: str) -> list[int]:
    return [int(core) for core in text.split(",")]


def _batches(text: str) -> list[tuple[str, list[int]]]:
    """As in `NAME:4:8,OTHER:16`."""
    found = []
    for part in text.split(","):
        name, *batch_sizes = part.split(":")
        found.append((name, [int(batch_size) for batch_size in batch_sizes]))
    return found


if __name__ == "__main__":
    sys.exit(main())
