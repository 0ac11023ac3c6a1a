"""A trace as a graph of values: what its last step made, from what, at which cost, and until when.

Content of a storage between two writes is a value; values that are not roots have a recipe. What is
known before it is run is all here: `benchmarks.floor` and `benchmarks.sketch` compute from it what
has to be recomputed in a budget.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

NEVER = 2**62


@dataclass(eq=False)
class Recipe:
    """How values were made."""

    cost_ns: int
    inputs: list[Value]


@dataclass(eq=False)
class Value:
    """Content of a storage between two writes; a root has no recipe."""

    num_bytes: int
    recipe: Recipe | None
    born: int  # the operator that made it
    last_read: int = -1
    root_from: int = NEVER  # from this operator on it is a root, and there without being paid for


@dataclass
class Operator:
    """What is held while it runs."""

    cost_ns: int
    running_bytes: int
    root_bytes: int
    own: list[Value]


@dataclass
class Program:
    """All operators and values of a trace."""

    operators: list[Operator] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)

    def last_step(self) -> range:
        """Its operators; without any steps, all."""
        ends = [0, *(self.step_ends or [len(self.operators)])]
        return range(*ends[-2:])

    def compute_ns(self) -> int:
        """Of the last step, when nothing is recomputed."""
        return sum(self.operators[number].cost_ns for number in self.last_step())

    def of_last_step(self) -> list[Value]:
        """What it made that can be recomputed. Anything else is taken to be there, at no bytes."""
        begin = self.last_step().start
        return [v for v in self.values if v.recipe is not None and v.born >= begin]

    def waiting(self, number: int) -> list[Value]:
        """What the last step made before an operator and reads after it, and is not its own."""
        own = set(map(id, self.operators[number].own))
        return [
            v for v in self.of_last_step() if v.born < number < v.last_read and id(v) not in own
        ]

    def least_bytes(self) -> int:
        """Below which some operator of the last step cannot run, whatever is given up."""
        operators = [self.operators[number] for number in self.last_step()]
        return max(operator.root_bytes + operator.running_bytes for operator in operators)

    def needed_bytes(self) -> npt.NDArray[np.int64]:
        """By operator of the last step: all that is held when nothing that is read later goes."""
        step = self.last_step()
        change = np.zeros(len(step) + 2, np.int64)
        for value in self.of_last_step():
            if value.last_read > value.born + 1:
                change[value.born + 1 - step.start] += value.num_bytes
                change[min(value.last_read, step.stop) - step.start] -= value.num_bytes
        held: npt.NDArray[np.int64] = np.cumsum(change)[: len(step)]
        for number in step:
            operator = self.operators[number]
            # Its own are counted as running, those that wait among them too.
            own = {id(v): v.num_bytes for v in operator.own if v.born < number < v.last_read}
            held[number - step.start] += operator.root_bytes + operator.running_bytes
            held[number - step.start] -= sum(own.values())
        return held


class _Reader:
    def __init__(self, header: dict[str, Any]) -> None:
        self.program = Program()
        self.alignment: int = header.get("alignment", 64)
        self.header_bytes: int = header.get("header_bytes", 0)
        self.content: dict[int, Value] = {}  # by storage
        self.root_bytes = 0

    def rounded(self, num_bytes: int) -> int:
        return -(-(num_bytes + self.header_bytes) // self.alignment) * self.alignment

    def make(self, storage: int, num_bytes: int, recipe: Recipe | None) -> Value:
        value = Value(num_bytes, recipe, len(self.program.operators))
        self.program.values.append(value)
        self.content[storage] = value
        self.root_bytes += 0 if recipe else num_bytes
        return value

    def end(self, storage: int) -> Value:
        value = self.content.pop(storage)
        self.root_bytes -= 0 if value.recipe else value.num_bytes
        return value

    def make_root(self, storage: int) -> None:
        if self.content[storage].recipe is not None:
            value = self.end(storage)
            value.last_read = value.root_from = len(self.program.operators)
            self.make(storage, value.num_bytes, None)

    def entry(self, entry: dict[str, Any]) -> None:
        if "op" in entry:
            self.operator(entry)
        elif "root" in entry:
            self.make(entry["root"], self.rounded(entry["bytes"]), None)
        elif "external" in entry:
            self.make(entry["external"], 0, None)
        elif "free" in entry:
            self.end(entry["free"])
        elif "step" in entry:
            if entry["step"] == "end":
                self.program.step_ends.append(len(self.program.operators))
        else:
            for kind in ("make_root", "leaf", "keep", "expose", "unseen_write"):
                if kind in entry:
                    self.make_root(entry[kind])

    def operator(self, entry: dict[str, Any]) -> None:
        number = len(self.program.operators)
        writes, overwrites = entry.get("writes", []), entry.get("overwrites", [])
        roots = entry.get("make_roots", [])
        for storage in [*writes, *overwrites] if roots is True else roots:
            self.make_root(storage)
        reads = [s for s in entry.get("inputs", []) if s not in overwrites] + writes
        used = {s: self.content[s] for s in [*reads, *overwrites]}
        recipe = Recipe(entry["cost_ns"], [self.content[s] for s in reads])
        kept = recipe if entry.get("replayable", True) else None
        for value in recipe.inputs:
            value.last_read = number
        running = sum(value.num_bytes for value in used.values() if value.recipe)
        running += self.most_allocated(entry)
        made = [self.make(s, self.rounded(n), kept) for s, n in entry.get("outputs", [])]
        for storage in [*writes, *overwrites]:
            if self.content[storage].recipe is not None:
                made.append(self.make(storage, self.end(storage).num_bytes, kept))
        # What it makes for good is counted as running.
        roots_made = sum(value.num_bytes for value in made if value.recipe is None)
        self.program.operators.append(
            Operator(
                entry["cost_ns"], running, self.root_bytes - roots_made, [*used.values(), *made]
            )
        )

    def most_allocated(self, entry: dict[str, Any]) -> int:
        sizes = [self.rounded(num_bytes) for _, num_bytes in entry.get("outputs", [])]
        if "memory" not in entry:
            return sum(sizes)
        held = most = 0
        temporaries: list[int] = []
        for kind, *numbers in entry["memory"]:
            if kind == "output":
                held += sizes[numbers[0]]
            elif kind == "temporary":
                temporaries.append(self.rounded(numbers[0]))
                held += temporaries[-1]
            elif kind == "free":
                held -= temporaries[numbers[0]]
            else:  # a root that outlives the operator
                self.make(numbers[0], self.rounded(numbers[1]), None)
            most = max(most, held)
        return most


def read_program(path: Path) -> Program:
    """The values of a trace that `coop.trace.read_trace` accepts."""
    data = path.read_bytes()
    header, *entries = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    reader = _Reader(json.loads(header))
    for entry in entries:
        reader.entry(json.loads(entry))
    return reader.program
