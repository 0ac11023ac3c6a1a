"""All calls: `make test-evicted-arguments`. In processes, so that a crash is a finding."""

from __future__ import annotations

import argparse
import subprocess
import sys

from .calls import calls, names
from .verdict import judge

A_WORKER = 300


def work(share: list[str]) -> None:
    for name in share:
        print(f"begin {name}", flush=True)
        try:
            for call in calls(name):
                found = judge(call)
                if found is not None:
                    print(f"found {call.name}: {found}", flush=True)
        except Exception as error:
            print(f"found {name}: not judged, {type(error).__name__}: {error}", flush=True)
    print("done", flush=True)


def run(share: list[str]) -> list[str]:
    """What was found; after a crash, of the rest too."""
    found: list[str] = []
    while share:
        command = [sys.executable, "-m", "tests.evicted", "--worker", *share]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = result.stdout.splitlines()
        found += [line.removeprefix("found ") for line in lines if line.startswith("found ")]
        if "done" in lines:
            break
        begun = [line.removeprefix("begin ") for line in lines if line.startswith("begin ")]
        found.append(
            f"{begun[-1] if begun else share[0]}: the process ended with {result.returncode}"
        )
        share = share[len(begun) or 1 :]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("names", nargs="*", help="all, if none are given")
    options = parser.parse_args()
    chosen = options.names or names()
    if options.worker:
        work(chosen)
        return 0
    found: list[str] = []
    for begin in range(0, len(chosen), A_WORKER):
        found += run(chosen[begin : begin + A_WORKER])
        print(f"{min(begin + A_WORKER, len(chosen))} of {len(chosen)}", flush=True)
    for line in found:
        print(line)
    print(f"{len(chosen)} names, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
