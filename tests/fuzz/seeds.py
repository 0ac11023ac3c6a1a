"""Runs the programs of some seeds, in this process, and counts."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import torch

from .check import check
from .program import Program, Trial, random_trials, repeated_trial, shrink

COUNTS = (
    "operators",
    "evictions",
    "replays",
    "followed",
    "trials",
    "not_fitting",
    "lost",
    "raw",
    "failures",
)


def fails(trial: Trial, program: Program) -> bool:
    return check(dataclasses.replace(trial, program=program)).failure is not None


def report(seed: int, trial: Trial, failure: str) -> str:
    """The failure, and the smallest program that still has it."""
    program = shrink(trial.program, lambda candidate: fails(trial, candidate))
    result = check(dataclasses.replace(trial, program=program))
    return (
        f"seed {seed}: {failure}\n{trial.options} share {trial.share}\n"
        f"shrunk to {len(program)} instructions: {result.failure}\n"
        f"Trial({program!r}, {trial.share!r}, {trial.options!r})"
    )


def prepare() -> None:
    """Once in a process."""
    torch.set_num_threads(1)
    # Collecting garbage after a program that did not fit is for what that left, not for torch.
    check(random_trials(0)[0])
    gc.collect()
    gc.freeze()


def run_seeds(seeds: range) -> dict[str, Any]:
    """The counts, and what there is to tell."""
    counts: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    reports: list[str] = []
    for seed in seeds:
        for number, trial in enumerate([*random_trials(seed), repeated_trial(seed)]):
            result = check(trial)
            counts["trials"] += 1
            counts["operators"] += result.num_operators
            counts["evictions"] += result.num_evictions
            counts["replays"] += result.num_replays
            counts["followed"] += result.num_followed
            counts["not_fitting"] += not (result.fitted or result.lost or result.raw)
            for kind in ("lost", "raw"):
                if getattr(result, kind):
                    counts[kind] += 1
                    reports.append(f"seed {seed} trial {number}: {kind}")
            if result.failure is not None:
                counts["failures"] += 1
                reports.append(report(seed, trial, result.failure))
    return {**counts, "reports": reports}
