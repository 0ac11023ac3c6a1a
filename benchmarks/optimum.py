"""How far from the optimum the online policies are, on graphs small enough to know it.

    python -m benchmarks.optimum        # prints a table in Markdown

The optimum is an integer program after Checkmate (Jain et al., MLSys 2020), solved by HiGHS: stage
t makes the program's operator t and whatever is recomputed for it; memory is the sum of what is
held, without addresses, so no policy can do better, and one with addresses may not reach it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from coop.planner import smallest_budget
from coop.simulate import Options, peak_without_limit, simulate
from coop.trace import Trace, TraceWriter, read_trace

POLICIES = ("coop", "dtr", "dte")
MIB = 2**20
# Between the smallest budget that coop fits and the peak.
POSITIONS = (0.66, 0.33, 0.05)
TIME_LIMIT_S = 20


@dataclass
class Graph:
    """Operators with one result each, in the order of the program."""

    cost: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    constant_bytes: int = MIB  # a root that everything reads

    def add(self, cost: int, mib: float, inputs: list[int]) -> int:
        """Appends an operator; returns its number."""
        self.cost.append(cost * 1000)
        self.size.append(int(mib * MIB))
        self.inputs.append(inputs)
        return len(self.cost) - 1

    def write(self, path: Path) -> Trace:
        """As a trace: every result dies after its last use."""
        last_use = {i: i for i in range(len(self.cost))}
        for number, inputs in enumerate(self.inputs):
            for i in inputs:
                last_use[i] = number
        with TraceWriter(path) as writer:
            writer.root(0, self.constant_bytes)
            for number, inputs in enumerate(self.inputs):
                writer.operator(
                    "op",
                    self.cost[number],
                    inputs=[0, *(i + 1 for i in inputs)],
                    outputs=[(number + 1, self.size[number])],
                    side="left" if self.cost[number] >= 20_000 else "right",
                )
                for i, last in last_use.items():
                    if last == number:
                        writer.free(i + 1)
        return read_trace(path)


def backward(graph: Graph, tape: list[tuple[int, list[int], float]], gradient: int) -> int:
    """Appends a gradient for every (cost, saved operators, MiB) of the tape, from its end."""
    for cost, saved, mib in reversed(tape):
        gradient = graph.add(2 * cost, mib, [gradient, *saved])
    return gradient


def chain(depth: int, costs: Callable[[int], int], mib: Callable[[int], float]) -> Graph:
    graph = Graph()
    tape, x = [], graph.add(1, mib(0), [])
    for layer in range(depth):
        y = graph.add(costs(layer), mib(layer), [x])
        tape.append((costs(layer), [x, y], mib(layer)))
        x = y
    backward(graph, tape, graph.add(1, mib(depth - 1), [x]))
    return graph


def residual(depth: int) -> Graph:
    graph = Graph()
    tape, x = [], graph.add(1, 2, [])
    for _ in range(depth):
        a = graph.add(40, 3, [x])
        y = graph.add(3, 2, [a, x])
        tape.append((40, [x, a], 2))
        x = y
    backward(graph, tape, graph.add(1, 2, [x]))
    return graph


def ushape(depth: int) -> Graph:
    graph = Graph()
    tape, skips, x = [], [], graph.add(1, 8, [])
    for level in range(depth):
        y = graph.add(30, 8 / 2**level, [x])
        tape.append((30, [x, y], 8 / 2**level))
        skips.append(y)
        x = y
    for level in reversed(range(depth)):
        y = graph.add(25, 8 / 2**level, [x, skips[level]])
        tape.append((25, [x, skips[level]], 8 / 2**level))
        x = y
    backward(graph, tape, graph.add(1, 8, [x]))
    return graph


def recurrent(depth: int) -> Graph:
    graph = Graph()
    tape, state = [], graph.add(1, 1, [])
    inputs = graph.add(5, 4, [])
    for _ in range(depth):
        gates = graph.add(30, 4, [state, inputs])
        state = graph.add(4, 1, [gates])
        tape.append((15, [gates, state], 1))
    backward(graph, tape, graph.add(1, 1, [state]))
    return graph


def tree(depth: int) -> Graph:
    graph = Graph()
    tape: list[tuple[int, list[int], float]] = []

    def encode(level: int) -> int:
        if level == 0:
            return graph.add(10, 2, [])
        left, right = encode(level - 1), encode(level - 1)
        node = graph.add(25, 2, [left, right])
        tape.append((25, [left, right, node], 2))
        return node

    root = encode(depth)
    backward(graph, tape, graph.add(1, 2, [root]))
    return graph


def random_graph(seed: int, forward: int) -> Graph:
    chooser = random.Random(seed)
    graph = Graph()
    tape, made = [], [graph.add(1, 2, [])]
    for _ in range(forward):
        inputs = sorted(chooser.sample(made[-4:], min(len(made), chooser.choice((1, 1, 2)))))
        cost, mib = chooser.choice((3, 5, 30, 60)), chooser.choice((1, 2, 3, 6))
        node = graph.add(cost, mib, inputs)
        tape.append((cost, [*inputs, node][: chooser.choice((1, 2, 3))], mib))
        made.append(node)
    backward(graph, tape, graph.add(1, 2, [made[-1]]))
    return graph


GRAPHS: dict[str, Graph] = {
    "chain of 8": chain(8, lambda _: 30, lambda _: 2),
    "chain, cheap and expensive": chain(8, lambda k: 60 if k % 2 else 4, lambda _: 2),
    "chain, shrinking": chain(8, lambda k: 30 + 5 * k, lambda k: 8 / 2 ** (k // 2)),
    "chain, growing": chain(7, lambda k: 30 + 5 * k, lambda k: 0.5 * 2 ** (k // 2)),
    "residual": residual(5),
    "u-shape": ushape(3),
    "recurrent": recurrent(6),
    "tree": tree(3),
    "random 1": random_graph(1, 8),
    "random 2": random_graph(2, 8),
    "random 3": random_graph(3, 9),
}


def optimum(graph: Graph, budget_bytes: int) -> tuple[float, bool]:
    """The least cost inside the budget, and whether that is proved (else it is a lower bound)."""
    n = len(graph.cost)
    users: list[list[int]] = [[] for _ in range(n)]
    for j, inputs in enumerate(graph.inputs):
        for i in inputs:
            users[i].append(j)
    # Columns: R[t, i] made in stage t, S[t, i] kept into stage t, F[t, i, k] freed after k in t.
    columns: dict[tuple[str, int, int, int], int] = {}

    def column(kind: str, t: int, i: int, k: int = 0) -> int:
        return columns.setdefault((kind, t, i, k), len(columns))

    rows: list[tuple[dict[int, float], float, float]] = []
    fixed: dict[int, float] = {}
    for t in range(n):
        for i in range(t + 1):
            column("R", t, i)
            if i < t:
                column("S", t, i)
        fixed[column("R", t, t)] = 1
        for i in range(t + 1):
            for j in graph.inputs[i]:  # what it reads is there
                row = {column("R", t, i): 1.0, column("R", t, j): -1.0}
                row[column("S", t, j)] = -1.0
                rows.append((row, -np.inf, 0))
            if i < t:  # what is kept was there
                row = {column("S", t, i): 1.0, column("R", t - 1, i): -1.0}
                if i < t - 1:
                    row[column("S", t - 1, i)] = -1.0
                rows.append((row, -np.inf, 0))
    for t in range(n):
        held: dict[int, float] = {column("S", t, i): float(graph.size[i]) for i in range(t)}
        room = float(budget_bytes - graph.constant_bytes)
        for k in range(t + 1):
            held[column("R", t, k)] = held.get(column("R", t, k), 0) + graph.size[k]
            rows.append((dict(held), -np.inf, room))
            for i in {*graph.inputs[k], k}:
                free = column("F", t, i, k)
                rows.append(({free: 1.0, column("R", t, k): -1.0}, -np.inf, 0))
                if t + 1 < n:
                    rows.append(({free: 1.0, column("S", t + 1, i): 1.0}, -np.inf, 1))
                for j in users[i]:
                    if k < j <= t:
                        rows.append(({free: 1.0, column("R", t, j): 1.0}, -np.inf, 1))
                held[free] = held.get(free, 0) - graph.size[i]
    width = len(columns)
    objective = np.zeros(width)
    integrality = np.zeros(width)
    for (kind, _, i, _), number in columns.items():
        if kind == "R":
            objective[number] = graph.cost[i]
        integrality[number] = kind != "F"
    lower, upper = np.zeros(width), np.ones(width)
    for number, value in fixed.items():
        lower[number] = value
    entries = [(r, c, v) for r, (row, _, _) in enumerate(rows) for c, v in row.items()]
    at, of, values = zip(*entries, strict=True)
    matrix = coo_matrix((values, (at, of)), shape=(len(rows), width)).tocsr()
    scale = np.array([max(1.0, abs(high)) for _, _, high in rows])
    matrix = coo_matrix(matrix.multiply(1 / scale[:, None])).tocsr()
    bounds = LinearConstraint(
        matrix,
        [low for _, low, _ in rows],
        [high / s for (_, _, high), s in zip(rows, scale, strict=True)],
    )
    result = milp(
        objective,
        constraints=bounds,
        integrality=integrality,
        bounds=Bounds(lower, upper),
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": 1e-6},
    )
    if result.status == 0:
        return float(result.fun), True
    if result.mip_dual_bound is None:
        raise RuntimeError(f"HiGHS: {result.message}")
    return float(result.mip_dual_bound), False


@dataclass(frozen=True)
class Cell:
    """One graph in one budget: costs over the cost without recomputation; None: does not fit."""

    graph: str
    budget_bytes: int
    optimum: float
    is_proved: bool
    overheads: dict[str, float | None]


def measure(name: str, graph: Graph) -> list[Cell]:
    """The optimum and the policies in the budgets of one graph."""
    total = sum(graph.cost)
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        trace = graph.write(Path(folder) / "graph.jsonl")
        peak, smallest = peak_without_limit(trace), smallest_budget(trace)
        for position in POSITIONS:
            budget = int(smallest + position * (peak - smallest)) // 4096 * 4096
            best, proved = optimum(graph, budget)
            results = {
                policy: simulate(trace, budget, Options(policy, small_bytes=0))
                for policy in POLICIES
            }
            overheads = {
                policy: result.overhead if result.fitted else None
                for policy, result in results.items()
            }
            cells.append(Cell(name, budget, best / total, proved, overheads))
    return cells


def table(cells: list[Cell]) -> str:
    """Markdown; a distance is the policy's cost over the optimum's."""
    lines = [
        "| graph | operators | budget, MiB | optimum | " + " | ".join(POLICIES) + " |",
        "| --- | --- | --- | --- |" + " --- |" * len(POLICIES),
    ]
    for cell in cells:
        shown = [
            "no" if value is None else f"{value:.3f} (+{max(value / cell.optimum - 1, 0):.1%})"
            for value in cell.overheads.values()
        ]
        best = f"{cell.optimum:.3f}" + ("" if cell.is_proved else " (bound)")
        lines.append(
            f"| {cell.graph} | {len(GRAPHS[cell.graph].cost)} | {cell.budget_bytes / MIB:.1f} | "
            f"{best} | " + " | ".join(shown) + " |"
        )
    fits = {policy: [c for c in cells if c.overheads[policy] is not None] for policy in POLICIES}
    together = [c for c in cells if all(c in fits[policy] for policy in POLICIES)]
    for told, of in ((f"mean where all three fit ({len(together)})", together), ("mean", None)):
        means = []
        for policy in POLICIES:
            chosen = fits[policy] if of is None else of
            mean = np.mean([(c.overheads[policy] or 0) / c.optimum - 1 for c in chosen])
            means.append(f"+{mean:.1%} ({len(chosen)} of {len(cells)})")
        lines.append(f"| {told} | | | | " + " | ".join(means) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    cells = []
    for name, graph in GRAPHS.items():
        cells += measure(name, graph)
    print(table(cells))


if __name__ == "__main__":
    main()
