"""The zoo: networks recorded without the hardware, and how a policy does on them.

python -m benchmarks.zoo record [NAME ...]    # into build/zoo, half an hour on two cores
python -m benchmarks.zoo report [NAME ...]    # tables and a summary; --out writes rows
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.harness.results import Results
from coop.simulate import POLICIES

from . import measure, report
from . import record as recording
from .networks import HALVES, NETWORKS, Network, chosen


def _in_processes(
    function: Callable[..., Any], networks: Sequence[Network], jobs: int, *args: Any
) -> Iterator[tuple[str, Any]]:
    """(name, result) of each network, as they come."""
    # Spawned: torch does not like to be forked once it has started threads.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        names = {pool.submit(function, n.name, *args): n.name for n in networks}
        for future in as_completed(names):
            yield names[future], future.result()


def record(networks: Sequence[Network], args: argparse.Namespace) -> int:
    """Records what is not there yet; 1 if one is not what the table says."""
    table = recording.read_table()
    missing = [n for n in networks if not recording.is_recorded(n, args.folder, table)]
    wrong = []
    for name, (recorded, seconds) in _in_processes(
        recording.record_named, missing, args.jobs, args.folder
    ):
        path = recording.trace_path(args.folder, NETWORKS[name])
        print(
            f"{path}: {recorded.num_operators} operators, {recorded.peak_bytes / 2**30:.2f} GiB, "
            f"{path.stat().st_size} bytes, {seconds:.0f} s",
            flush=True,
        )
        known = table.get(name)
        if args.accept:
            table[name] = recorded
            recording.write_table(table)
        elif known is None or known.sha256 != recorded.sha256:
            wrong.append(name)
    if wrong:
        print(
            f"not as in {recording.TABLE.name}: {', '.join(wrong)}. The table was made with "
            f"{recording.versions()}; --accept writes this recording into it"
        )
    return 1 if wrong else 0


def show(networks: Sequence[Network], args: argparse.Namespace) -> int:
    """Runs the policy on all of them, and tells how it does."""
    missing = [n.name for n in networks if not recording.trace_path(args.folder, n).exists()]
    if missing:
        print(f"not recorded: {', '.join(missing)}. Run: python -m benchmarks.zoo record")
        return 1
    rows = {
        name: [{**cell.identity(), **row} for cell, row in measured]
        for name, measured in _in_processes(
            measure.measure, networks, args.jobs, args.folder, args.policy, args.scan
        )
    }
    in_order = [row for network in networks for row in rows[network.name]]
    if args.out is not None:
        settings = {"device": recording.DEVICE, "simulated": True, "policy": args.policy}
        results = Results.new(args.out, shlex.join(sys.argv), "zoo", settings)
        results.add_all(in_order)
    for half in HALVES:
        if any(row["half"] == half for row in in_order):
            print(report.table(in_order, half) + "\n")
    print(report.told(in_order))
    return 0


def main() -> int:
    """Parses the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="record the networks without the hardware")
    recorder.add_argument(
        "--accept", action="store_true", help="what is recorded is what it should be from now on"
    )
    reporter = commands.add_parser("report", help="how a policy does on them")
    reporter.add_argument("--policy", choices=POLICIES, default="coop")
    reporter.add_argument("--scan", action="store_true", help="also budgets 1%% apart: cliffs")
    reporter.add_argument("--out", type=Path, metavar="FILE", help="write the rows")
    for command in (recorder, reporter):
        command.add_argument("names", nargs="*", metavar="NAME", help="default: all")
        command.add_argument("--half", choices=HALVES, help="default: both")
        command.add_argument("--folder", type=Path, default=recording.FOLDER)
        command.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    args = parser.parse_args()
    try:
        networks = chosen(args.names, args.half)
    except ValueError as error:
        parser.error(str(error))
    return (record if args.command == "record" else show)(networks, args)


if __name__ == "__main__":
    raise SystemExit(main())
