"""Runs a random program plain and inside a budget, and compares what is left."""

from __future__ import annotations

import functools
import gc
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import coop
from tests.bits import bits
from tests.perturb import FILLS, perturbed_malloc

from .machine import NUM_OUTSIDE, Machine, Nothing, StopProgram
from .program import Program, Trial

AMPLE_BYTES = 256 * 2**20
SMALLEST_BYTES = 64 * 2**10
GRAIN_BYTES = 4096
# These are many operators: what they had done when one of them did not fit stays done.
COMPOUND = frozenset(
    [
        "backward",
        "grad",
        "checkpoint",
        "step",
        "numpy",
        "out",
        "scatter",
        "foreach",
        "layer",
        "assign",
        "random",
        "seed",
        "leaf",
        "round",
    ]
)


@dataclass(frozen=True)
class Outcome:
    """What a run left behind; `stopped` is the instruction that did not fit."""

    bits: dict[str, Tensor]
    log: list[str]
    stopped: int | None
    raw: bool = False
    stats: coop.Stats | None = None


@dataclass(frozen=True)
class Result:
    """How a trial went."""

    failure: str | None
    fitted: bool
    lost: bool
    raw: bool
    num_operators: int
    num_evictions: int
    num_replays: int
    num_followed: int  # steps, by a schedule


def outside_tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(32, 32, generator=generator) for _ in range(NUM_OUTSIDE)]


def run_plain(program: Program, stop: int | None = None) -> Outcome:
    machine = Machine(Nothing(), outside_tensors())
    machine.run(program, stop)
    return Outcome(_cloned(machine.everything()), machine.log, None)


def run_inside(program: Program, budget_bytes: int, options: dict[str, Any]) -> Outcome:
    """Everything is compared after the budget was left, so that all of it must come back."""
    machine = Machine(coop, outside_tensors())
    stopped, raw = None, False
    with coop.budget(budget_bytes, device="cpu", **options) as session:
        # A step that needed nothing, so that it is quiet from the start, if ever.
        session._engine.end_step(True)
        try:
            machine.run(program)
        except StopProgram as stop:
            stopped, raw = stop.instruction, stop.raw
            gc.collect()
    return Outcome(_cloned(machine.everything()), machine.log, stopped, raw, session.stats())


@functools.lru_cache(maxsize=1)
def reference(program: Program) -> tuple[Outcome, Outcome]:
    """The plain run, and one with room for everything. The trials of a program share them."""
    return run_plain(program), run_inside(program, AMPLE_BYTES, {})


def budget_of(trial: Trial, peak: int) -> int:
    budget_bytes = int(trial.share * peak) // GRAIN_BYTES * GRAIN_BYTES
    return max(SMALLEST_BYTES, budget_bytes) if not dict(trial.options)["paranoid"] else AMPLE_BYTES


def check(trial: Trial) -> Result:
    """The promise: the same bits, or an error that says it does not fit and changed nothing."""
    program = trial.program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, ample = reference(program)
        assert ample.stats is not None
        budget_bytes = budget_of(trial, ample.stats.peak_bytes)
        try:
            actual = run_inside(program, budget_bytes, dict(trial.options))
        except coop.LostTensorError:
            return Result(None, False, True, False, 0, 0, 0, 0)
        if actual.stopped is not None:
            kind = program[actual.stopped][0]
            if kind in COMPOUND or actual.raw:
                failure = None
            else:
                failure = difference(run_plain(program, actual.stopped), actual)
                failure = failure and f"after not fitting at {actual.stopped} {kind}: {failure}"
        else:
            failure = difference(expected, actual) or difference(expected, ample)
    stats = actual.stats
    assert stats is not None
    if failure is None and stats.peak_bytes > budget_bytes:
        failure = f"held {stats.peak_bytes} of {budget_bytes} bytes"
    if failure is not None and actual.stopped is None and varies(program, expected):
        failure = None
    return Result(
        failure,
        actual.stopped is None,
        False,
        actual.raw,
        stats.num_operators,
        stats.num_evictions,
        stats.num_replays,
        stats.num_followed,
    )


def varies(program: Program, expected: Outcome) -> bool:
    """Whether plain runs differ among themselves: it reads memory that nobody has written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fill in FILLS:
            with perturbed_malloc(fill):
                again = run_plain(program)
            if difference(expected, again) is not None:
                return True
    return False


def difference(expected: Outcome, actual: Outcome) -> str | None:
    for number, (left, right) in enumerate(zip(expected.log, actual.log, strict=False)):
        if left != right:
            return f"log entry {number} is {right}, not {left}"
    if len(expected.log) != len(actual.log):
        return f"{len(actual.log)} log entries, not {len(expected.log)}: {actual.log[-1:]}"
    if list(expected.bits) != list(actual.bits):
        return f"other tensors: {list(actual.bits)}, not {list(expected.bits)}"
    for name, left in expected.bits.items():
        right = actual.bits[name]
        if not torch.equal(left, right):
            return f"{name} differs in {int((left != right).sum())} of {len(left)} bytes"
    return None


def _cloned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name} {t.dtype} {tuple(t.shape)}": bits(t) for name, t in tensors.items()}
