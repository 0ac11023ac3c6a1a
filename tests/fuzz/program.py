"""Random programs as plain data, so that they can be printed, kept and shrunk.

A program is a list of instructions: the name of a kind and a few numbers. What the numbers mean is
up to the kind (see machine.py); operands are chosen modulo what there is to choose from, so that
any part of a program is a program too. That is all that shrinking needs.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Instruction = tuple[str, tuple[int, ...]]
Program = tuple[Instruction, ...]

# How often each kind is drawn.
WEIGHTS = {
    "factory": 8,
    "root": 2,
    "outside": 2,
    "leaf": 3,
    "unary": 14,
    "several": 5,
    "binary": 14,
    "matmul": 4,
    "reduce": 4,
    "layer": 4,
    "cast": 3,
    "view": 16,
    "inplace": 10,
    "inplace_binary": 10,
    "assign": 6,
    "scatter": 4,
    "foreach": 3,
    "out": 6,
    "random": 6,
    "random_inplace": 3,
    "seed": 1,
    "delete": 16,
    "read": 4,
    "backward": 4,
    "grad": 3,
    "checkpoint": 1,
    "step": 1,
    "evict": 6,
    "materialize": 3,
    "keep": 1,
    "unkeep": 1,
    "numpy": 1,
    "swap_data": 1,
    "resize": 1,
}
NUM_NUMBERS = 6

POLICIES: tuple[dict[str, Any], ...] = (
    {"policy": "coop"},
    {"policy": "coop", "window": False},
    {"policy": "coop", "partition": False},
    {"policy": "coop", "inplace": False},
    {"policy": "dtr"},
    {"policy": "dte"},
)


@dataclass(frozen=True)
class Trial:
    """A program and how it is run inside a budget: `share` of what it holds when it has room."""

    program: Program
    share: float
    options: tuple[tuple[str, Any], ...]


def random_program(rng: random.Random, num_instructions: int) -> Program:
    kinds = rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=num_instructions)
    return tuple(
        (kind, tuple(rng.randrange(1 << 16) for _ in range(NUM_NUMBERS))) for kind in kinds
    )


def with_settings(rng: random.Random, program: Program) -> Program:
    """The same, with settings of torch's that change between its instructions."""
    result: list[Instruction] = []
    for instruction in program:
        if rng.random() < 0.1:
            result.append(("setting", tuple(rng.randrange(1 << 16) for _ in range(NUM_NUMBERS))))
        result.append(instruction)
    return tuple(result)


def repeated_program(rng: random.Random, num_instructions: int, num_rounds: int) -> Program:
    """Steps of training that are the same, but for an instruction here and there.

    Every round begins with the same tensors, so that most of its operators are those of the last.
    """
    body = [i for i in random_program(rng, num_instructions) if i[0] not in ("leaf", "seed")]
    # So that there is something to evict, and something that is needed again.
    layers = [
        ("layer", instruction[1]) for instruction in random_program(rng, num_instructions // 2)
    ]
    body = [*layers, *body, ("backward", tuple(rng.randrange(1 << 16) for _ in range(NUM_NUMBERS)))]
    program = [("leaf", instruction[1]) for instruction in random_program(rng, 4)]
    for _ in range(num_rounds):
        this = list(body)
        if rng.random() < 0.3:
            this[rng.randrange(len(this))] = random_program(rng, 1)[0]
        program += [("round", (rng.randrange(1 << 16),) * NUM_NUMBERS), *this]
    return tuple(program)


def repeated_trial(seed: int) -> Trial:
    """A program whose steps repeat, in a budget that evicts: schedules are made, and followed."""
    rng = random.Random(f"repeated {seed}")
    program = repeated_program(rng, rng.randint(10, 60), num_rounds=8)
    options = {"policy": "coop", "paranoid": False, "small_bytes": rng.choice((0, 1024))}
    # Not drawn, so that the seeds that found something go on finding it.
    options["background"] = seed % 4 == 3
    return Trial(program, rng.uniform(0.5, 0.9), tuple(sorted(options.items())))


def random_trials(seed: int, num_trials: int = 3, max_instructions: int = 200) -> list[Trial]:
    """One program and a few ways to run it."""
    rng = random.Random(seed)
    program = random_program(rng, rng.randint(max_instructions // 10, max_instructions))
    if seed % 3 == 0:
        # Drawn on its own, so that the seeds that found something go on finding it.
        program = with_settings(random.Random(f"settings {seed}"), program)
    trials = []
    for number in range(num_trials):
        options = dict(rng.choice(POLICIES))
        # In turn: everything evicted always, and budgets from ample to hardly feasible.
        options["paranoid"] = number == 0
        options["small_bytes"] = rng.choice((0, 0, 1024, 10240))
        share = 1.5 if number == 0 else rng.uniform(0.2, 1.0)
        # Not drawn, for the same reason: every other tight trial begins with what is not recorded.
        options["quiet_after"] = (seed + number) % 2 if number > 0 else 0
        # Copies in main memory, so that roots leave too.
        options["host"] = (0, 256 * 2**10, 64 * 2**20)[(seed + number) % 3]
        options["host_dir"] = tempfile.gettempdir()
        trials.append(Trial(program, share, tuple(sorted(options.items()))))
    return trials


def shrink(program: Program, fails: Callable[[Program], bool], max_attempts: int = 2000) -> Program:
    """A part of the program that still fails, and of which no instruction can be left out."""
    attempts = 0
    size = max(1, len(program) // 2)
    while True:
        start, shorter = 0, False
        while start < len(program) and attempts < max_attempts:
            attempts += 1
            candidate = program[:start] + program[start + size :]
            if fails(candidate):
                program, shorter = candidate, True
            else:
                start += size
        if attempts >= max_attempts or (size == 1 and not shorter):
            return program
        size = max(1, size // 2)
