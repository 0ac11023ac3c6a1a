"""`python -m coop watch`: how a run goes that is already going."""

import argparse
import json
import sys
import time

from coop.live import LiveLine
from coop.status import Status, read_status, runs

SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom, and how."""
    parser.add_argument("pid", metavar="PID", type=int, nargs="?", help="default: the only run")
    parser.add_argument("--once", action="store_true", help="say how it goes now, and end")
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(args: argparse.Namespace) -> int:
    """Until the run ends, or Ctrl-C. 1: there is no such run."""
    pid = args.pid
    if pid is None:
        found = runs()
        if len(found) != 1:
            which = "which one? " + " ".join(map(str, found))
            print(f"coop watch: {which if found else 'no run of yours goes on'}", file=sys.stderr)
            return 1
        (pid,) = found
    status = read_status(pid)
    if status is None:
        print(
            f"coop watch: process {pid} is no run of yours (by `coop run`) that has made a step",
            file=sys.stderr,
        )
        return 1
    if args.json:
        print(json.dumps(status))
        return 0
    print(f"{status['program']} on {status['device']}, process {pid}", file=sys.stderr)
    _follow(pid, status, args.once)
    return 0


def _follow(pid: int, status: Status | None, once: bool) -> None:
    line = LiveLine()
    try:
        while status is not None:
            line.show(status)
            if once:
                return
            time.sleep(SECONDS)
            status = read_status(pid)
    finally:
        line.end()
