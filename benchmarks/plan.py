"""How long a plan takes: `python -m benchmarks.plan` (`make bench-plan`).

Records GPTs without the hardware, one with about 10,000 operators and one with more than 100,000,
and times `coop plan` on them: ten budgets, from the smallest that fits to the peak, under three
policies, and all of the plan, with the search for the smallest budgets. CPU time of all threads / 2
is what two idle cores would take; the time on the clock is beside it, because others may use the
machine too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.models import Workload
from benchmarks.models.gpt import GptConfig, gpt_workload
from benchmarks.traces.paper import record_workload
from coop.planner import Plan, plan_trace
from coop.simulate import Options, simulate
from coop.trace import Trace, read_trace

Result = TypeVar("Result")

FOLDER = Path("build/bench-plan")
NUM_CORES = 2
# Layers and steps.
SIZES = ((24, 8), (96, 25))


def gpt(num_layers: int) -> Workload:
    """A GPT whose activations, not its parameters, fill the memory."""
    config = GptConfig(num_layers=num_layers, hidden=1024, num_heads=16, context=1024)
    return gpt_workload(f"gpt-{num_layers}", "paper", config, config.context, 16, None)


def sweep(trace: Trace, plan: Plan) -> None:
    """The simulations of the plan's points alone."""
    with ThreadPoolExecutor(NUM_CORES) as pool:
        options = {p: Options(p, alignment=trace.header.alignment) for p in plan.smallest_bytes}
        cells = [(trace, p.budget_bytes, options[p.policy]) for p in plan.points]
        list(pool.map(lambda cell: simulate(*cell, most_replay=5), cells))


def timed(run: Callable[[], Result]) -> tuple[Result, str]:
    """Its result; CPU seconds / cores, and seconds on the clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    cpu = (time.process_time() - cpu) / NUM_CORES
    return result, f"{cpu:.1f} s ({time.perf_counter() - wall:.1f} s)"


def main() -> None:
    """Records what is not there yet, measures, prints a table."""
    table = Table("operators", "reading", "10 budgets x 3 policies", "all of the plan", box=None)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for num_layers, num_steps in SIZES:
        path = FOLDER / f"{num_layers}-{num_steps}.jsonl.gz"
        if not path.exists():
            record_workload(gpt(num_layers), num_steps, path)
        trace, reading = timed(partial(read_trace, path))
        plan, planning = timed(partial(plan_trace, trace))
        _, sweeping = timed(partial(sweep, trace, plan))
        table.add_row(str(trace.num_operators), reading, sweeping, planning)
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    main()
