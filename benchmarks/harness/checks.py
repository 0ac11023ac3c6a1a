"""What is measured on a GPU beside the paper's sweep; each check runs on the CPU too, when small.

A check takes a runner and measures its cells; rows that the file has already stay as they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.cells import Cell
from benchmarks.harness.runner import Runner

__all__ = ["curve", "full", "identical", "large", "limits", "overhead", "smallest"]

Row = dict[str, Any]

STEPS_OF_A_TURN = 8
# Plain and budgeted processes of a pair run on the same ones.
CORES = (2, 3)
# Of what checkpointing reserves, or allocates, at its peak.
CURVE = (
    ("checkpoint reserved", "peak_reserved_bytes", 1.0),
    ("checkpoint allocated", "peak_bytes", 1.0),
    ("85% of that", "peak_bytes", 0.85),
    ("70% of that", "peak_bytes", 0.70),
)


def identical(runner: Runner, names: Sequence[str], ratios: Sequence[float]) -> None:
    """The same losses, gradients, parameters and buffers as plain torch, bit for bit, down to
    budgets that do not fit any more."""
    runner.measure_all([Cell(name, "plain", "plain") for name in names])
    runner.measure_all(
        [Cell(name, "coop", "reserved", ratio) for name in names for ratio in ratios]
    )


def curve(runner: Runner, names: Sequence[str]) -> None:
    """Step time against budget, and what torch.utils.checkpoint does at its own peak."""
    for name in names:
        runner.measure(Cell(name, "plain", "plain"))
        row = runner.measure(Cell(name, "checkpoint", "plain"))
        if row["status"] != "ok":
            continue
        for label, field, share in CURVE:
            if field in row:  # on the CPU nothing is reserved
                budget_bytes = int(share * row[field])
                runner.measure(Cell(name, "coop", "budget", None, label, budget_bytes))


def limits(runner: Runner, batches: Sequence[tuple[str, Sequence[int]]], budget_bytes: int) -> None:
    """Which batches train in a budget. Plain torch is held to it too."""
    label = limit_label(budget_bytes)
    runner.measure_all(
        [
            Cell(name, configuration, "budget", None, label, budget_bytes, batch_size)
            for name, batch_sizes in batches
            for configuration in ("plain", "coop")
            for batch_size in batch_sizes
        ]
    )


def large(runner: Runner, name: str, budget_bytes: int) -> None:
    """One network alone: plain with all of the memory, then both in a budget."""
    label = limit_label(budget_bytes)
    runner.measure(Cell(name, "plain", "plain"))
    for configuration in ("plain", "coop"):
        runner.measure(Cell(name, configuration, "budget", None, label, budget_bytes))


def limit_label(budget_bytes: int) -> str:
    """The budget, exactly."""
    mib, rest = divmod(budget_bytes, 2**20)
    return f"{budget_bytes} bytes" if rest else f"{mib} MiB"


def smallest(runner: Runner, names: Sequence[str], configurations: Sequence[str]) -> None:
    """The smallest budget of each network."""
    runner.measure_all([Cell(name, "plain", "plain") for name in names])
    runner.measure_all([Cell(name, each, "smallest") for name in names for each in configurations])


def overhead(runner: Runner, device: str) -> None:
    """What the engine adds to an operator."""
    configurations = ("plain", "allocator", "coop") if device == "cuda" else ("plain", "coop")
    for configuration in configurations:
        # The network stands for nothing here: no step of it is run.
        runner.measure(Cell("lstm", configuration, "operators"))


def full(
    runner: Runner,
    cells: Sequence[tuple[str, int | None]],
    num_rounds: int,
    num_pairs: int,
    cores: Sequence[int] = CORES,
) -> None:
    """Step time at what plain torch reserves, networks with their batch sizes.

    A process is fast or slow for as long as it lives, by a few percent where the CPU counts: so
    several pairs of them.
    """
    for name, batch_size in cells:
        plain = runner.measure(Cell(name, "plain", "plain", batch_size=batch_size))
        if plain["status"] != "ok":
            continue
        budget_bytes = _whole_bytes(plain)
        for number in range(1, num_pairs + 1):
            cell = Cell(name, "coop", "pair", None, str(number), budget_bytes, batch_size)
            if runner.known(cell) is None:
                runner.add(cell, _pair(runner, cell, num_rounds, cores))


def _whole_bytes(plain: Row) -> int:
    """What plain torch reserves; on the CPU it reserves nothing."""
    num_bytes: int = plain[
        "peak_reserved_bytes" if "peak_reserved_bytes" in plain else "peak_bytes"
    ]
    return num_bytes


def _pair(runner: Runner, cell: Cell, num_rounds: int, cores: Sequence[int]) -> Row:
    """Plain and coop in turn, a few steps each and on the same cores: both see the same machine."""
    plain = Cell(cell.model, "plain", "plain", batch_size=cell.batch_size)
    with runner.server() as first, runner.server() as second:
        turns = {
            "plain": first.begin(runner.request(plain, None, cores=list(cores))),
            "coop": second.begin(runner.request(cell, cell.budget_bytes, cores=list(cores))),
        }
        times: dict[str, list[float]] = {name: [] for name in turns}
        ratios = []
        for _ in range(num_rounds):
            for name, each in turns.items():
                times[name] += each.steps(STEPS_OF_A_TURN)
            if not any(each.failed for each in turns.values()):
                last = {n: statistics.median(t[-STEPS_OF_A_TURN:]) for n, t in times.items()}
                ratios.append(last["coop"] / last["plain"])
        rows = {name: each.end() for name, each in turns.items()}
    for name, row in rows.items():
        if row["status"] != "ok":
            reason = f"the {name} process: {row['reason']}"
            return {"budget_bytes": cell.budget_bytes, **row, "reason": reason}
    row = rows["coop"]
    row["budget_bytes"] = cell.budget_bytes
    for name, field in (("coop", "step_ms"), ("plain", "plain_step_ms")):
        # Others on the machine only ever make a step slower: so the first decile too.
        decile = statistics.quantiles(times[name], n=10)[0]
        row[field] = {**rows[name]["step_ms"], "first_decile": decile}
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    own, plain_ms = row["step_ms"], row["plain_step_ms"]
    return row | {
        "overhead_wall": own["median"] / plain_ms["median"],
        "overhead_first_decile": own["first_decile"] / plain_ms["first_decile"],
        # Of neighbours in time, where the machine has fast and slow minutes.
        "overhead_rounds": {"median": median, "first_quartile": low, "third_quartile": high},
        "us_per_operator": (own["median"] - plain_ms["median"])
        * 1e3
        / (row["num_operators"] / row["steps"]),
    }
