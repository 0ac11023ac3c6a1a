"""`python -m coop bench`: the paper's evaluation, into one results file."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coop.bench.cells import (
    ABLATIONS,
    CONFIGURATIONS,
    POLICIES,
    BenchError,
    Cell,
    grid,
    workloads,
)
from coop.bench.results import Results
from coop.bench.sweep import OutOfTime, Sweep
from coop.bench.tables import print_tables
from coop.commands._arguments import output_path

RATIOS = (1.0, 0.8, 0.6, 0.5, 0.4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", metavar="NAME,…", type=_names, help="default: the paper's eight networks"
    )
    parser.add_argument("--size", choices=("tiny", "paper"), default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--policies",
        metavar="NAME,…",
        type=_policies,
        default=POLICIES,
        help=f"of {', '.join(CONFIGURATIONS)}; default: {','.join(POLICIES)}",
    )
    parser.add_argument(
        "--ablations", action="store_true", help="also Coop without each of its parts"
    )
    parser.add_argument(
        "--ratios",
        metavar="R,…",
        type=_ratios,
        help="budget / peak without a budget; default: "
        f"{','.join(map(str, RATIOS))}, or none with --min-budget",
    )
    parser.add_argument("--min-budget", action="store_true", help="find the smallest budget")
    parser.add_argument(
        "--steps", metavar="N", type=_positive, default=5, help="measured, after two of warm-up"
    )
    parser.add_argument(
        "--threads", metavar="N", type=_positive, default=1, help="of torch; default: 1"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=_positive, default=900, help="for one cell"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=_positive,
        help="for the whole sweep; the same command goes on later",
    )
    parser.add_argument("--out", metavar="FILE.json", type=output_path, required=True)


def run(args: argparse.Namespace) -> int:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with _plan(args) as sweep:
            _run(sweep, console)
    except BenchError as error:
        print(f"coop bench: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, OutOfTime) as stop:
        reason = "out of time" if isinstance(stop, OutOfTime) else "stopped"
        console.print(f"{reason}; the same command goes on with {args.out}")
        return 0 if isinstance(stop, OutOfTime) else 130
    print_tables(sweep.results, Console(highlight=False, soft_wrap=True))
    print(f"wrote {args.out}")
    return 0


def _plan(args: argparse.Namespace) -> Sweep:
    networks = workloads()
    models = args.models or networks.EIGHT
    for name in models:
        if name not in networks.names():
            raise BenchError(f"no network named {name!r}; there are: {', '.join(networks.names())}")
    configurations = list(args.policies)
    if args.ablations:
        configurations += [name for name in ABLATIONS if name not in configurations]
    ratios: Sequence[float] = args.ratios or (() if args.min_budget else RATIOS)
    settings = {name: getattr(args, name) for name in ("size", "device", "steps", "threads")}
    command = shlex.join(["python", "-m", "coop", *sys.argv[1:]])
    results = Results.open(args.out, command, settings)
    cells = list(grid(models, configurations, ratios, args.min_budget))
    return Sweep(results, cells, args.timeout, args.time_limit)


def _run(sweep: Sweep, console: Console) -> None:
    missing = sweep.missing
    if len(missing) < len(sweep.cells):
        done = len(sweep.cells) - len(missing)
        console.print(f"{done} of {len(sweep.cells)} cells are in {sweep.results.path} already")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("bench", total=len(missing))

        def report(cell: Cell, row: dict[str, Any]) -> None:
            progress.console.print(_line(cell, row), markup=False)
            progress.advance(task)

        sweep.run(report)


def _line(cell: Cell, row: dict[str, Any]) -> str:
    name = f"{cell.key:36}"
    if row["status"] != "ok":
        return f"{name} failed: {row['reason']}"
    parts = [f"{row['step_ms']['median']:8.1f} ms"]
    if "memory_ratio" in row:
        parts.append(f"memory {row['memory_ratio']:.2f}")
    if "overhead_cost" in row:
        parts.append(f"cost {row['overhead_cost']:.3f}")
    if "num_evictions" in row:
        parts.append(f"fragmentation {row['fragmentation']:.1%}")
        parts.append(f"search {row['search_share']:.2%}")
    if "overhead_wall" in row:
        parts.append(f"time {row['overhead_wall']:.3f}")
    if row.get("identical") is False:
        parts.append("OTHER RESULTS")
    return name + "  ".join(parts)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("no names")
    return names


def _policies(text: str) -> list[str]:
    names = _names(text)
    for name in names:
        if name not in CONFIGURATIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(CONFIGURATIONS)}")
    return names


def _ratios(text: str) -> list[float]:
    try:
        ratios = [float(part) for part in text.split(",")]
    except ValueError:
        ratios = [math.nan]
    if not all(0 < ratio <= 100 for ratio in ratios):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ratios, as in 1.0,0.8,0.5")
    return ratios


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
