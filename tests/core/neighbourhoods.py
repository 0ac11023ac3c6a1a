"""Union-find against the exact neighbourhood on the traces: docs/results/2026-11-18-core.md."""

import gzip
import json

from coop._native import _C
from coop.simulate import Options, peak_without_limit
from coop.trace.reader import _Reader
from tests.core.decisions import TRACES, shipped

EVERY = 20  # entries between two looks


def measure(name: str, ratio: float = 0.5) -> str:
    """How often the union-find says what is exact, and how far off it is otherwise."""
    budget_bytes = int(ratio * peak_without_limit(shipped(name)))
    simulator = _C.Simulator(Options().config(budget_bytes))
    reader = _Reader()
    num_equal = num_under = 0
    ratios: list[float] = []
    with gzip.open(TRACES / f"{name}.jsonl.gz", "rt") as file:
        for line, text in enumerate(file, 1):
            if line == 1:
                continue
            reader.entry(json.loads(text), line)
            if not simulator.apply_last(reader.native):
                break
            if line % EVERY:
                continue
            for storage, defined in reader.lines.items():
                if defined < 0 or simulator.is_root(storage) or not simulator.is_resident(storage):
                    continue
                if simulator.made_in_backward(storage):  # it is moved, whatever is beside it
                    continue
                exact = simulator.neighbourhood(storage, True)
                estimate = simulator.neighbourhood(storage, False)
                num_equal += estimate == exact
                num_under += estimate < exact
                ratios.append(estimate / exact)
    ratios.sort()
    return (
        f"{name} looks {len(ratios)} exact {num_equal / len(ratios):.3f} "
        f"under {num_under / len(ratios):.3f} median {ratios[len(ratios) // 2]:.3f} "
        f"mean {sum(ratios) / len(ratios):.3f} largest {ratios[-1]:.2f}"
    )
