"""Random programs until so many operators have run: `make fuzz`.

It goes on where it was stopped, if it is still the same build: the state is a file with the next
seed and the counts so far. A failure is shrunk, printed as a program that can be pasted into a
test, and ends the run. The same seeds run whatever the number of processes is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tests.build_id import build_id

from .seeds import COUNTS, prepare, run_seeds

BATCH = 8  # seeds that a process runs before the state is written


def read_state(path: Path, build: str) -> dict[str, Any]:
    new = {"build": build, "seed": 0, **dict.fromkeys(COUNTS, 0), "reports": []}
    if not path.exists():
        return new
    state: dict[str, Any] = json.loads(path.read_text())
    if state.get("build") == build:
        return state
    print(f"{path} is of another build: starting anew", flush=True)
    return new


def add(state: dict[str, Any], found: dict[str, Any]) -> None:
    for key, amount in found.items():
        state[key] += amount
    for text in found["reports"]:
        print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=1_000_000, help="how many to run in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, help="run only this seed, and keep no state")
    parser.add_argument("--go-on", action="store_true", help="do not end at a failure")
    parser.add_argument("--state", type=Path, default=Path("build/fuzz.json"))
    arguments = parser.parse_args()
    if arguments.seed is not None:
        prepare()
        found = run_seeds(range(arguments.seed, arguments.seed + 1))
        print("\n".join([*found.pop("reports"), str(found)]))
        return 1 if found["failures"] else 0

    state = read_state(arguments.state, build_id("fuzz"))
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    began_at = state["operators"]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context, prepare) as pool:
        while state["operators"] < arguments.operators:
            first, last = state["seed"], state["seed"] + BATCH * arguments.jobs
            parts = [range(seed, seed + BATCH) for seed in range(first, last, BATCH)]
            try:
                for found in pool.map(run_seeds, parts):
                    add(state, found)
            except BrokenProcessPool:
                print(f"a process died: run --seed for each of {first} to {last - 1}")
                return 1
            state["seed"] = last
            arguments.state.write_text(json.dumps(state, indent=1))
            seconds = time.perf_counter() - start
            rate = (state["operators"] - began_at) / seconds
            counts = ", ".join(f"{state[key]:,} {key}" for key in COUNTS)
            print(f"{counts}; {rate:.0f} operators a second", flush=True)
            if (state["failures"] and not arguments.go_on) or seconds > arguments.seconds:
                break
    return 1 if state["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
