"""Copies in main memory against recomputing, checkpointing and offload hooks, in the same memory.

    python -m benchmarks.peers.copies --minutes 8 --out copies.json     # goes on where it was
    python -m benchmarks.peers.copies --models llama_7b --minutes 5 --out copies.json
    python -m benchmarks.peers.copies --table --out copies.json

Every network trains in plain torch, with checkpointing, and with offload hooks at several shares of
what is saved: each takes the memory that it takes. Coop trains in the budgets below, three ways:
recomputing only, copying only (its model of the link says that a copy costs nothing), and both. The
table has, for every budget, each peer that takes no more, the hooks at their fastest share.

*least* is what no way that moves as many bytes can be faster than: the larger of the operators with
their recomputations, as they were measured when they ran, and the bytes of the busier way over the
link.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.__main__ import Cell, key_of, run_cells
from benchmarks.peers.ways import WAYS_WITH_COPIES
from coop.profiles import cuda_link
from coop.sizes import format_bytes, parse_bytes

Row = dict[str, Any]

# Name, batch (None: its own), budgets.
CELLS: dict[str, tuple[tuple[str, int | None, tuple[str, ...]], ...]] = {
    "tiny": (("llama_7b", None, ("8MiB", "5MiB")),),
    "paper": (
        ("llama_1b", None, ("18GiB", "14.5GiB", "11.95GiB", "8GiB")),
        ("hf_gpt2", None, ("18.33GiB",)),
        ("hf_bert", None, ("13.29GiB",)),
        ("tv_resnet50", None, ("6.28GiB",)),
        ("hf_gpt2_2.7b", None, ("56GiB", "40GiB", "24GiB")),
        ("llama_7b", None, ("40GiB", "32GiB", "24GiB")),
        ("diffusion_unet", None, ("16GiB", "12GiB", "8GiB")),
        ("gpt3", None, ("32GiB", "24GiB", "16GiB")),
    ),
}
# Schedules are made in the background, after a few steps.
WARM_UP = 10
HOOKS = "offload hooks"


def cells_of(size: str, names: list[str] | None, known: set[Any]) -> list[Cell]:
    """Those that are missing, network by network."""
    found = []
    for name, batch, budgets in CELLS[size]:
        if names is not None and name not in names:
            continue
        for way in WAYS_WITH_COPIES:
            for budget in budgets if way.share else (None,):
                within = None if budget is None else parse_bytes(budget)
                options = ("--warm-up", str(WARM_UP))
                cell = Cell(name, batch, way, size, within, *options)
                if key_of(cell.row) not in known:
                    found.append(cell)
    return found


def least_ms(row: Row, bytes_per_second: float) -> float:
    """See the module."""
    compute_ms = (row["step_compute_ns"] + row["step_replay_ns"]) / 1e6
    sent = max(row["step_host_saved_bytes"], row["step_host_loaded_bytes"])
    return float(max(compute_ms, 1e3 * sent / bytes_per_second))


def table(rows: list[Row], bytes_per_second: float) -> list[str]:
    """A line for each network, budget and way."""
    lines = [
        "| network | memory | way | ms | over plain | out | back | least ms | ms / least |",
        "| --- " * 9 + "|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        plain = next((r.get("ms") for r in of_model if r["way"] == "plain"), None)
        budgets = {r["within_bytes"] for r in of_model if r["within_bytes"]}
        lines += [_line(r, plain, bytes_per_second) for r in of_model if r["way"] == "plain"]
        for budget in sorted(budgets, reverse=True):
            others = [r for r in of_model if r.get("memory_bytes", budget + 1) <= budget]
            others = [r for r in others if not r["within_bytes"] and r["way"] != "plain"]
            hooks = sorted((r for r in others if r["peer"] == HOOKS), key=lambda r: r["ms"])
            shown = [r for r in others if r["peer"] != HOOKS] + hooks[:1]
            shown += [r for r in of_model if r["within_bytes"] == budget]
            lines += [_line(row, plain, bytes_per_second, budget) for row in shown]
    return lines


def _line(row: Row, plain: float | None, bytes_per_second: float, budget: int = 0) -> str:
    memory = format_bytes(budget or row.get("memory_bytes", 0))
    if "why_not" in row:
        return f"| {row['model']} | {memory} | {row['way']} | {row['why_not'][:60]} |||||||"
    over = f"{row['ms'] / plain - 1:+.1%}" if plain else ""
    cells = [row["model"], memory, row["way"], f"{row['ms']:.1f}", over]
    if "step_compute_ns" in row:
        least = least_ms(row, bytes_per_second)
        sent = (row["step_host_saved_bytes"], row["step_host_loaded_bytes"])
        cells += [format_bytes(int(each)) for each in sent]
        cells += [f"{least:.1f}", f"{row['ms'] / least:.2f}"]
    else:
        cells += [""] * 4
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """0: nothing is missing any more; 3: the time of this slice is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=("tiny", "paper"), default="paper")
    parser.add_argument("--models", help="a,b: only these")
    parser.add_argument("--minutes", type=float, default=1e9, help="of this slice")
    parser.add_argument("--table", action="store_true", help="print what there is")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows: list[Row] = json.loads(args.out.read_text()) if args.out.exists() else []
    if args.table:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "H200"
        print("\n".join(table(rows, cuda_link(name).out_bytes_per_second)))
        return 0
    names = args.models.split(",") if args.models else None
    cells = cells_of(args.size, names, {key_of(row) for row in rows})
    return run_cells(cells, rows, args.out, args.minutes)


if __name__ == "__main__":
    sys.exit(main())
