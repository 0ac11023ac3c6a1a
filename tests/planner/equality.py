"""The engine and the simulator, decision for decision, on the programs of tests/adapter.

`python -m tests.planner.equality` (`make test-simulator`) compares all of them; CI some.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import coop
from coop.simulate import Options, simulate
from coop.trace import Trace, read_trace
from tests.adapter.outcome import Program
from tests.adapter.programs import PROGRAMS

POLICIES = ("coop", "dtr", "dte")
RATIOS = (1.0, 0.8, 0.6, 0.45)
AMPLE_BYTES = 2**30
# Everything that is decided; the rest of the statistics are times, or count memory of others that
# a trace knows a little earlier than the engine.
KEYS = (
    "num_operators", "num_replays", "num_evictions", "evicted_bytes", "num_searches",
    "searched_blocks", "num_forced", "fragmentation", "num_copies", "copied_bytes", "num_retries",
    "moved_bytes", "num_steps", "compute_ns", "replay_ns", "num_recipes", "held_bytes",
    "peak_bytes", "needed_bytes", "num_blocks",
)  # fmt: skip


def record(program: Program, path: Path) -> tuple[Trace, int]:
    """The trace of the program where nothing has to go, and the most bytes it holds."""
    program(0)  # what libraries make once, they make before
    with coop.budget(AMPLE_BYTES, device="cpu") as session:
        with coop.record(path):
            outcome = program(0)
            peak_bytes = session.stats().peak_bytes
        del outcome
        gc.collect()
    return read_trace(path), peak_bytes


def decisions_of_the_engine(
    program: Program, budget_bytes: int, policy: str
) -> dict[str, float] | None:
    """None: it does not fit."""
    stats = None
    with coop.budget(budget_bytes, device="cpu", policy=policy) as session:
        try:
            outcome = program(0)
            stats = session.stats().as_dict()
            del outcome
        except coop.OutOfBudgetError:
            pass
        gc.collect()
    return None if stats is None else {key: stats[key] for key in KEYS}


def decisions_of_the_simulator(
    trace: Trace, budget_bytes: int, policy: str
) -> dict[str, float] | None:
    """None: it does not fit."""
    result = simulate(trace, budget_bytes, Options(policy, alignment=trace.header.alignment))
    return {key: result.stats[key] for key in KEYS} if result.fitted else None  # type: ignore[literal-required]


def differences(name: str, policies: Sequence[str] = POLICIES) -> list[str]:
    """What the two decide differently on a program, over budgets and policies."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        trace, peak_bytes = record(PROGRAMS[name], Path(folder) / "trace.jsonl")
    for policy in policies:
        for ratio in RATIOS:
            budget_bytes = int(peak_bytes * ratio) // 4096 * 4096
            engine = decisions_of_the_engine(PROGRAMS[name], budget_bytes, policy)
            simulator = decisions_of_the_simulator(trace, budget_bytes, policy)
            if engine == simulator:
                continue
            where = f"{name} in {budget_bytes} bytes under {policy}"
            if engine is None or simulator is None:
                found.append(f"{where}: fits {engine is not None} / {simulator is not None}")
            else:
                pairs = [f"{k} {engine[k]} / {simulator[k]}" for k in KEYS]
                found.append(f"{where}: " + ", ".join(p for p in pairs if not _equal(p)))
    return found


def _equal(pair: str) -> bool:
    engine, _, simulator = pair.split(" ", 1)[1].partition(" / ")
    return engine == simulator


def main() -> int:
    """Prints the differences, engine / simulator; exit code 1 when there are any."""
    warnings.simplefilter("ignore")
    found = []
    names = sys.argv[1:] or list(PROGRAMS)
    for name in names:
        found += differences(name)
        print(f"{name}: {len(found)} differences so far", flush=True)
    print("\n".join(found))
    cases = len(names) * len(POLICIES) * len(RATIOS)
    print(f"{cases} runs of {len(names)} programs, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
