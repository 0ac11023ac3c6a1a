"""`python -m coop bench`: the paper's evaluation, into one results file."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import models
from benchmarks.harness.arguments import (
    configurations,
    known_names,
    line,
    names,
    positive,
    ratios,
    reporting,
)
from benchmarks.harness.cells import ABLATIONS, CONFIGURATIONS, POLICIES, Cell, grid
from benchmarks.harness.results import Results
from benchmarks.harness.runner import Runner
from benchmarks.harness.tables import print_tables
from coop.commands._arguments import output_path

RATIOS = (1.0, 0.8, 0.6, 0.5, 0.4)
WARM_UP = 2  # steps that are not measured: optimizer states appear in the first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `coop bench`."""
    parser.add_argument(
        "--models", metavar="NAME,…", type=names, help="default: the paper's eight networks"
    )
    parser.add_argument("--size", choices=("tiny", "paper"), default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--policies",
        metavar="NAME,…",
        type=configurations,
        default=POLICIES,
        help=f"of {', '.join(CONFIGURATIONS)}; default: {','.join(POLICIES)}",
    )
    parser.add_argument(
        "--ablations", action="store_true", help="also Coop without each of its parts"
    )
    parser.add_argument(
        "--ratios",
        metavar="R,…",
        type=ratios,
        help="budget / peak without a budget; default: "
        f"{','.join(map(str, RATIOS))}, or none with --min-budget",
    )
    parser.add_argument("--min-budget", action="store_true", help="find the smallest budget")
    parser.add_argument(
        "--steps", metavar="N", type=positive, default=5, help="measured, after two of warm-up"
    )
    parser.add_argument(
        "--threads", metavar="N", type=positive, default=1, help="of torch; default: 1"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=positive, default=900, help="for one cell"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=positive,
        help="for the whole sweep; the same command goes on later",
    )
    parser.add_argument("--out", metavar="FILE.json", type=output_path, required=True)


def run(args: argparse.Namespace) -> int:
    """The sweep; tables to standard output."""
    with reporting("coop bench", args.out) as outcome:
        cells = _cells(args)
        settings = {
            **{name: getattr(args, name) for name in ("size", "device", "steps")},
            "warmup": WARM_UP,
            "threads": args.threads,
            # The same bits in every run is a column of the tables.
            "deterministic": True,
        }
        command = shlex.join(["python", "-m", "coop", *sys.argv[1:]])
        results = Results.open(args.out, command, "sweep", settings)
        with Runner(results, args.timeout, args.time_limit) as runner:
            _measure(runner, cells)
    if outcome.code is not None:
        return outcome.code
    print_tables(results)
    print(f"wrote {args.out}")
    return 0


def _cells(args: argparse.Namespace) -> list[Cell]:
    chosen = list(args.policies)
    if args.ablations:
        chosen += [name for name in ABLATIONS if name not in chosen]
    shares: Sequence[float] = args.ratios or (() if args.min_budget else RATIOS)
    return list(grid(known_names(args.models or models.EIGHT), chosen, shares, args.min_budget))


def _measure(runner: Runner, cells: Sequence[Cell]) -> None:
    """Measures what is missing, with a line for every row and a bar."""
    missing = runner.missing(cells)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if len(missing) < len(cells):
        done = len(cells) - len(missing)
        console.print(f"{done} of {len(cells)} cells are in {runner.results.path} already")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("bench", total=len(missing))

        def report(cell: Cell, row: dict[str, Any]) -> None:
            progress.console.print(line(cell, row), markup=False)
            progress.advance(task)

        runner.report = report
        runner.measure_all(missing)
