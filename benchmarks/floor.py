"""The least that any policy has to recompute, on the networks at paper size.

    python -m benchmarks.floor [TRACE ...]        # prints a table in Markdown

While one operator of the last step runs, its inputs, its results, its temporaries and all roots are
held. What is read later and does not fit beside them has to be recomputed, whatever chooses it: at
least the cheapest of it by the byte, and what is dead by then and has to be recomputed for it, once
for all that need it (all policies here give up at once what is dead). The largest such sum of the
operators that need the most memory is a lower bound. It has no addresses and recomputes nothing
twice, so a policy may not reach it.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coop.simulate import Options, peak_without_limit, simulate
from coop.trace import read_trace

TRACES = Path(__file__).parent / "traces" / "paper"
NETWORKS = ("resnet50", "inception_v3", "unet", "swin", "bert_large", "spos", "densenet121")
POLICIES = ("coop", "dtr", "dte")
RATIOS = (0.8, 0.7, 0.6, 0.5)
NUM_LOOKS = 16  # operators of the step, those that need the most memory


@dataclass(eq=False)
class Record:
    """How values were made."""

    cost_ns: int
    inputs: list[Value]


@dataclass(eq=False)
class Value:
    """Content of a storage between two writes; a root has no record."""

    num_bytes: int
    record: Record | None
    born: int  # the operator that made it
    last_read: int = -1
    died: int | None = None  # the operator before which it was gone


@dataclass
class Operator:
    """What is held while it runs."""

    cost_ns: int
    running_bytes: int
    root_bytes: int
    own: list[Value]


@dataclass
class Program:
    """A trace as a graph of values."""

    operators: list[Operator] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)

    def last_step(self) -> range:
        """Its operators; without any steps, all."""
        ends = [0, *(self.step_ends or [len(self.operators)])]
        return range(*ends[-2:])


class _Reader:
    def __init__(self, header: dict[str, Any]) -> None:
        self.program = Program()
        self.alignment: int = header.get("alignment", 64)
        self.header_bytes: int = header.get("header_bytes", 0)
        self.content: dict[int, Value] = {}  # by storage
        self.root_bytes = 0

    def rounded(self, num_bytes: int) -> int:
        return -(-(num_bytes + self.header_bytes) // self.alignment) * self.alignment

    def make(self, storage: int, num_bytes: int, record: Record | None) -> Value:
        value = Value(num_bytes, record, len(self.program.operators))
        self.program.values.append(value)
        self.content[storage] = value
        self.root_bytes += 0 if record else num_bytes
        return value

    def end(self, storage: int) -> Value:
        value = self.content.pop(storage)
        value.died = len(self.program.operators)
        self.root_bytes -= 0 if value.record else value.num_bytes
        return value

    def make_root(self, storage: int) -> None:
        if self.content[storage].record is not None:
            value = self.end(storage)
            value.last_read = len(self.program.operators)
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
            for kind in ("make_root", "leaf", "pin", "expose", "unseen_write"):
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
        record = Record(entry["cost_ns"], [self.content[s] for s in reads])
        kept = record if entry.get("replayable", True) else None
        for value in record.inputs:
            value.last_read = number
        running = sum(value.num_bytes for value in used.values() if value.record)
        running += self.most_allocated(entry)
        made = [self.make(s, self.rounded(n), kept) for s, n in entry.get("outputs", [])]
        for storage in [*writes, *overwrites]:
            if self.content[storage].record is not None:
                made.append(self.make(storage, self.end(storage).num_bytes, kept))
        # What it makes for good is counted as running.
        roots_made = sum(value.num_bytes for value in made if value.record is None)
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


def _waiting(program: Program, number: int) -> list[Value]:
    """What is read after the operator, and is not its own."""
    own = set(map(id, program.operators[number].own))
    begin = program.last_step().start
    return [
        value
        for value in program.values
        if value.record is not None
        and begin <= value.born < number < value.last_read
        and id(value) not in own
    ]


def _dead_sources(record: Record, number: int) -> Iterator[Record]:
    """Records that have to be replayed for it in any case, because what they made is gone."""
    seen = {record}
    stack = [record]
    while stack:
        for value in stack.pop().inputs:
            source = value.record
            if source is None or value.died is None or value.died > number or source in seen:
                continue
            seen.add(source)
            stack.append(source)
            yield source


def _least_at(program: Program, number: int, budget_bytes: int) -> float:
    operator = program.operators[number]
    room = budget_bytes - operator.root_bytes - operator.running_bytes
    num_bytes: dict[Record, int] = {}
    for value in _waiting(program, number):
        assert value.record is not None
        num_bytes[value.record] = num_bytes.get(value.record, 0) + value.num_bytes
    needed_by: dict[Record, list[Record]] = {record: [record] for record in num_bytes}
    for record in num_bytes:
        for source in _dead_sources(record, number):
            needed_by.setdefault(source, []).append(record)
    # What several need is shared among them: whichever of them goes, it is paid once at least.
    # By their bytes, since small ones stay: a norm's statistics, when its result is gone.
    cost = dict.fromkeys(num_bytes, 0.0)
    for source, users in needed_by.items():
        shared_bytes = sum(num_bytes[record] for record in users)
        for record in users:
            cost[record] += source.cost_ns * num_bytes[record] / max(shared_bytes, 1)
    excess = sum(num_bytes.values()) - room
    least = 0.0
    for record in sorted(num_bytes, key=lambda each: cost[each] / max(num_bytes[each], 1)):
        if excess <= 0:
            break
        least += cost[record] * min(1.0, excess / max(num_bytes[record], 1))
        excess -= num_bytes[record]
    return least


def floor(program: Program, budgets: Iterable[int]) -> list[float]:
    """For each budget, the least extra compute of the last step, as a share of its compute."""
    step = program.last_step()
    compute_ns = sum(program.operators[number].cost_ns for number in step)

    def needed(number: int) -> int:
        operator = program.operators[number]
        held = sum(value.num_bytes for value in _waiting(program, number))
        return operator.root_bytes + operator.running_bytes + held

    largest = sorted(step, key=needed)[-NUM_LOOKS:]
    return [
        max(_least_at(program, number, budget) for number in largest) / compute_ns
        for budget in budgets
    ]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    args = parser.parse_args()
    print(f"| network, floor / {' / '.join(POLICIES)} | " + " | ".join(map(str, RATIOS)) + " |")
    print("| --- " * (1 + len(RATIOS)) + "|")
    for path in args.traces or [TRACES / f"{name}.jsonl.gz" for name in NETWORKS]:
        trace = read_trace(path)
        peak_bytes = peak_without_limit(trace)
        budgets = [int(peak_bytes * ratio) for ratio in RATIOS]
        cells = []
        for budget, least in zip(budgets, floor(read_program(path), budgets), strict=True):
            shown = [f"{least:.1%}"]
            for policy in POLICIES:
                options = Options(policy, alignment=trace.header.alignment)
                last = simulate(trace, budget, options, most_replay=5)
                extra = last.last_step.replay_ns / last.last_step.compute_ns
                shown.append(f"{extra:.1%}" if last.fitted else "-")
            cells.append(" / ".join(shown))
        print(f"| {path.name.partition('.')[0]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
