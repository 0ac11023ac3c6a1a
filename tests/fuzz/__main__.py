"""Random programs until so many operators have run: `make fuzz`.

It goes on where it was stopped: the state is a file with the next seed and the counts so far.
A failure is shrunk, printed as a program that can be pasted into a test, and ends the run.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import sys
import time
from pathlib import Path

import torch

from .check import check
from .program import Program, Trial, random_trials, shrink

COUNTS = ("operators", "evictions", "replays", "trials", "not_fitting", "lost", "raw")


def fails(trial: Trial, program: Program) -> bool:
    return check(dataclasses.replace(trial, program=program)).failure is not None


def report(seed: int, trial: Trial, failure: str) -> None:
    print(f"seed {seed}: {failure}\n{trial.options} share {trial.share}", flush=True)
    program = shrink(trial.program, lambda candidate: fails(trial, candidate))
    result = check(dataclasses.replace(trial, program=program))
    print(f"shrunk to {len(program)} instructions: {result.failure}")
    print(f"Trial({program!r}, {trial.share!r}, {trial.options!r})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=1_000_000, help="how many to run in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--go-on", action="store_true", help="do not end at a failure")
    parser.add_argument("--state", type=Path, default=Path("build/fuzz.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    state = {"seed": 0, "failures": 0, **dict.fromkeys(COUNTS, 0)}
    if arguments.seed is not None:
        state["seed"] = arguments.seed
    elif arguments.state.exists():
        state |= json.loads(arguments.state.read_text())
    # Collecting garbage after a program that did not fit is for what that left, not for torch.
    check(random_trials(0)[0])
    gc.collect()
    gc.freeze()
    start = shown = time.perf_counter()
    began_at = state["operators"]
    while state["operators"] < arguments.operators:
        for trial in random_trials(state["seed"]):
            result = check(trial)
            state["trials"] += 1
            state["operators"] += result.num_operators
            state["evictions"] += result.num_evictions
            state["replays"] += result.num_replays
            state["not_fitting"] += not (result.fitted or result.lost or result.raw)
            state["lost"] += result.lost
            state["raw"] += result.raw
            if result.failure is not None:
                state["failures"] += 1
                report(state["seed"], trial, result.failure)
                if not arguments.go_on:
                    return 1
        state["seed"] += 1
        if arguments.seed is not None:
            break
        arguments.state.parent.mkdir(exist_ok=True)
        arguments.state.write_text(json.dumps(state))
        now = time.perf_counter()
        if now - shown > 10:
            shown = now
            rate = (state["operators"] - began_at) / (now - start)
            print(f"{rate:.0f} operators a second: {state}", flush=True)
        if now - start > arguments.seconds:
            break
    print(state)
    return 1 if state["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
