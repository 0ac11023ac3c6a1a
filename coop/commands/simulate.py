"""`python -m coop simulate`: run a trace inside a budget, without memory."""

import argparse
import json
import math
import sys
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from coop.commands._arguments import room, size
from coop.profiles import get_device
from coop.simulate import POLICIES, Options, Simulation, peak_without_limit, simulate
from coop.sizes import format_bytes
from coop.trace import TraceError, read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a trace file (.jsonl or .jsonl.gz)")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--budget", metavar="BYTES", type=size, help="e.g. 8GiB, 600MB, 1048576")
    budget.add_argument(
        "--ratio", metavar="R", type=_ratio, help="budget / most bytes held without a limit"
    )
    parser.add_argument("--policy", choices=POLICIES, default="coop")
    parser.add_argument("--no-window", action="store_true", help="evict one value at a time")
    parser.add_argument("--no-partition", action="store_true", help="place everything at one end")
    parser.add_argument("--no-inplace", action="store_true", help="copy on write")
    parser.add_argument(
        "--host",
        metavar="BYTES",
        type=room,
        default=0,
        help="room for copies in main memory; auto: as much as it takes",
    )
    parser.add_argument(
        "--device", metavar="DEVICE", help="whose link takes the copies (default: PCIe 4.0)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        metavar="N",
        help="repeat the last step of the trace until there are so many",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    options = Options(
        policy=args.policy,
        window=not args.no_window,
        partition=not args.no_partition,
        inplace=not args.no_inplace,
        host_bytes=args.host,
    )
    try:
        if args.device is not None:
            options = replace(options, link=get_device(args.device).link)
        trace = read_trace(args.trace).repeated(args.steps)
        budget_bytes = args.budget or int(args.ratio * peak_without_limit(trace))
        result = simulate(trace, budget_bytes, options)
    except TraceError as error:
        print(f"coop simulate: {error}", file=sys.stderr)
        return 2
    except ValueError as error:  # a budget smaller than one block
        print(f"coop simulate: {args.trace}: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(result.as_json()))
    else:
        _print(result)
    if not result.fitted:
        print(result.failure, file=sys.stderr)
    return 0 if result.fitted else 1


def _print(result: Simulation) -> None:
    stats = result.stats
    switched_off = [
        part for part in ("window", "partition", "inplace") if not getattr(result.options, part)
    ]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    search_us = stats["search_ns"] / 1e3
    per_search_us = search_us / max(stats["num_searches"], 1)
    rows = (
        ("policy", result.options.policy, "".join(f"without {part} " for part in switched_off)),
        ("budget", format_bytes(stats["budget_bytes"]), f"{stats['budget_bytes']} B"),
        ("fitted", "yes" if result.fitted else "no", ""),
        ("operators", str(stats["num_operators"]), f"{stats['num_steps']} steps"),
        ("recomputed", str(stats["num_replays"]), ""),
        ("overhead", f"{result.overhead:.4f}", "cost with / without recomputation"),
        ("evictions", str(stats["num_evictions"]), format_bytes(stats["evicted_bytes"])),
        ("searches", str(stats["num_searches"]), f"{per_search_us:.2f} us each"),
        ("search time", f"{search_us / 1e3:.3f} ms", ""),
        ("fragmentation", f"{stats['fragmentation']:.4f}", "free / budget, forced allocations"),
        ("copies", str(stats["num_copies"]), format_bytes(stats["copied_bytes"])),
        *(
            [
                (
                    "to the host",
                    str(stats["num_host_saves"]),
                    format_bytes(stats["host_saved_bytes"]),
                ),
                (
                    "and back",
                    str(stats["num_host_loads"]),
                    format_bytes(stats["host_loaded_bytes"]),
                ),
                (
                    "waited for it",
                    f"{stats['host_wait_ns'] / 1e6:.3f} ms",
                    "as the link is modelled",
                ),
            ]
            if stats["host_bytes"]
            else []
        ),
        ("peak", format_bytes(stats["peak_bytes"]), f"{stats['peak_bytes']} B"),
        (
            "needed",
            ("about " if stats["needed_is_estimate"] else "") + format_bytes(stats["needed_bytes"]),
            f"{stats['needed_bytes']} B: a budget in which nothing is evicted",
        ),
    )
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=True, highlight=False).print(table)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 0 < ratio <= 1000:  # also refuses nan
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio: a positive number, as in 0.5")
    return ratio
