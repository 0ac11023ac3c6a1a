"""Rows of one network: a policy in the simulator, beside floor, sketch and checkpointing."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import floor as floor_module
from benchmarks import program as program_module
from benchmarks import sketch as sketch_module
from benchmarks.harness.cells import Cell, Kind
from coop.simulate import STEADY_STEPS, Options, Simulation, simulate
from coop.trace import Trace, read_trace

from .networks import NETWORKS
from .record import Recorded, read_table, trace_path

Row = dict[str, Any]

RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
# The budget that is what checkpointing by block allocates.
CHECKPOINT = "checkpoint"
# A step that recomputes for more steps than these is taken not to fit.
MOST_REPLAY = 5.0
# Budgets of a scan, in percent of the peak.
SCAN = range(99, 4, -1)
# So many budgets in a row that do not fit, and smaller ones are not tried.
MOST_UNFIT = 5


def measure(name: str, folder: Path, policy: str, scan: bool) -> list[tuple[Cell, Row]]:
    """The rows of one network."""
    network = NETWORKS[name]
    recorded = read_table()[name]
    path = trace_path(folder, network)
    trace = read_trace(path).repeated(STEADY_STEPS)
    about = {"half": network.half, "family": network.family}
    cells: list[tuple[Kind, float | None, str | None, int]] = [
        ("ratio", ratio, None, int(ratio * recorded.peak_bytes)) for ratio in RATIOS
    ]
    if recorded.checkpoint is not None:
        cells.append(("budget", None, CHECKPOINT, recorded.checkpoint.peak_bytes))
    budgets = [budget for *_, budget in cells]
    rows: list[tuple[Cell, Row]] = []
    for (kind, ratio, label, budget), bounds in zip(cells, _bounds(path, budgets), strict=True):
        row = about | _simulated(trace, budget, policy) | bounds
        row["memory_ratio"] = budget / recorded.peak_bytes
        if label is not None and recorded.checkpoint is not None:
            row["extra_checkpoint"] = recorded.checkpoint.compute_ns / recorded.compute_ns - 1
        rows.append((Cell(name, policy, kind, ratio, label), row))
    if scan:
        rows.append((Cell(name, policy, "scan"), about | _scan(trace, recorded, policy)))
    return rows


def _run(trace: Trace, budget_bytes: int, policy: str) -> Simulation:
    options = Options(policy, alignment=trace.header.alignment)
    return simulate(trace, budget_bytes, options, most_replay=MOST_REPLAY)


def _extra(result: Simulation) -> float:
    return result.last_step.replay_ns / result.last_step.compute_ns


def _simulated(trace: Trace, budget_bytes: int, policy: str) -> Row:
    result = _run(trace, budget_bytes, policy)
    if not result.fitted:
        reason = result.failure.rpartition(": ")[2] if result.shortage is None else "out of budget"
        return {"budget_bytes": budget_bytes, "status": "failed", "reason": reason}
    last = result.last_step
    return {
        "budget_bytes": budget_bytes,
        "status": "ok",
        "extra": _extra(result),
        "num_evictions": last.num_evictions,
        "num_replays": last.num_replays,
    }


def _scan(trace: Trace, recorded: Recorded, policy: str) -> Row:
    """Extra compute by percent of the peak; null where it does not fit."""
    extras: dict[str, float | None] = {}
    num_unfit = 0
    for percent in SCAN:
        result = _run(trace, recorded.peak_bytes * percent // 100, policy)
        extras[str(percent)] = _extra(result) if result.fitted else None
        num_unfit = 0 if result.fitted else num_unfit + 1
        if num_unfit == MOST_UNFIT:
            break
    return {"status": "ok", "extras": extras}


def _bounds(path: Path, budgets: Sequence[int]) -> list[Row]:
    """Floor and sketch. They do not change with the policy, so they are kept beside the trace."""
    key = hashlib.sha256(path.read_bytes() + repr(list(budgets)).encode())
    for module in (program_module, floor_module, sketch_module):
        key.update(Path(str(module.__file__)).read_bytes())
    kept = path.with_name(path.name.partition(".")[0] + ".bounds.json")
    if kept.exists() and (content := json.loads(kept.read_text()))["key"] == key.hexdigest():
        rows: list[Row] = content["rows"]
        return rows
    program = program_module.read_program(path)
    both = zip(
        floor_module.floor(program, budgets), sketch_module.sketch(program, budgets), strict=True
    )
    # Left out where an operator cannot run in the budget, whatever is recomputed.
    rows = [
        {} if math.isinf(least) else {"extra_floor": least, "extra_sketch": reached}
        for least, reached in both
    ]
    kept.write_text(json.dumps({"key": key.hexdigest(), "rows": rows}))
    return rows
