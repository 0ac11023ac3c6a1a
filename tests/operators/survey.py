"""The whole operator database: `make test-operators`. Writes docs/operators.md.

It goes on where it was stopped, if the sources are still the same (tests/surveys.py). With names as
arguments only those operators are run and nothing is written.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter

from tests.surveys import ROOT, Entry, answer_names, parser_of, run_survey

PAGE = ROOT / "docs" / "operators.md"
SLOW_SECONDS = 120  # for all samples of an operator; what is left is counted and reported
# Those with the most samples, or with the largest. Torch's versions do not all have all of them.
LONGEST = (
    "logspace.tensor_overload",
    "grid_sampler_3d",
    "nn.Transformer",
    "nn.LinearCrossEntropyLoss",
    "nn.functional.max_pool2d",
    "max_pool2d_with_indices_backward",
    "linalg.solve_triangular",
    "logspace",
    "linalg.lu_solve",
    "nn.functional.max_pool1d",
    "searchsorted",
    "svd",
    "linalg.svd",
    "nn.functional.max_pool3d",
    "histogram",
    "linspace.tensor_overload",
    "linalg.vector_norm",
    "unique",
    "ormqr",
    "masked.norm",
    "nn.TransformerDecoderLayer",
    "nn.TransformerEncoderLayer",
    "nn.MultiheadAttention",
    "nn.functional.gaussian_nll_loss",
    "linalg.norm",
    "histc",
    "histogramdd",
    "eye",
    "unique_consecutive",
    "diff",
    "cdist",
)


def examine(name: str) -> Entry:
    """Runs all cases of an operator. Seconds are the processor's: on busy cores it is the same."""
    from .cases import FLOATS, OTHERS, QUICK_SECONDS, cases, dtypes
    from .verdict import judge

    start = time.process_time()
    kinds: Counter[str] = Counter()
    # Those that are not the same, by kind and variant.
    others: dict[tuple[str, str], list[str]] = {}
    kept: dict[str, str] = {}
    sums = {"num_operators": 0, "num_replays": 0, "num_evictions": 0}
    for dtype in dtypes(name, FLOATS + OTHERS):
        began = time.process_time()
        for case in cases(name, dtype):
            now = time.process_time()
            if dtype not in FLOATS and now - began > QUICK_SECONDS:
                kinds["left out"] += 1
                continue
            if now - start > SLOW_SECONDS:
                kinds["too slow"] += 1
                others.setdefault(("too slow", ""), []).append(
                    f"{case.name} and what comes after it: {SLOW_SECONDS} seconds were over"
                )
                continue
            verdict = judge(case)
            kinds[verdict.kind] += 1
            if verdict.kind in ("wrong", "error", "varies", "raw"):
                detail = f"{case.name}: {' '.join(verdict.detail.split())[:300]}"
                others.setdefault((verdict.kind, case.variant), []).append(detail)
            for key in sums:
                sums[key] += getattr(verdict.stats, key, 0)
            kept.update(verdict.kept or {})
    findings = [
        {"kind": kind, "cases": len(those), "first": those[0]}
        for (kind, _), those in others.items()
    ]
    seconds = round(time.process_time() - start, 2)
    return {"kinds": kinds, "findings": findings, "kept": kept, **sums, "seconds": seconds}


def work() -> None:
    import torch

    from coop._native import _C

    from . import verdict  # noqa: F401

    def examine_and_look(name: str) -> Entry:
        known = len(_C.operator_names())
        entry = examine(name)
        return {**entry, "met": sorted(set(_C.operator_names()[known:]))}

    torch.set_num_threads(1)
    # Collecting garbage after a case that raised is for what that left, not for torch.
    gc.collect()
    gc.freeze()
    answer_names(examine_and_look)


def main() -> int:
    options = parser_of(__doc__, "operators", PAGE).parse_args()
    if options.worker:
        work()
        return 0
    from tests.build_id import build_id

    from .cases import MODULES, OPERATORS

    # The longest first: at the end no process waits for one of them.
    everything = dict.fromkeys([*LONGEST, *sorted(OPERATORS), *sorted(MODULES)])
    everything = [name for name in everything if name in OPERATORS or name in MODULES]
    entries = run_survey("tests.operators.survey", options, everything, build_id("operators"))
    if entries is None:
        return 1
    kinds: Counter[str] = Counter()
    for entry in entries:
        kinds.update(entry["kinds"])
    print(dict(kinds))
    if not options.names:
        from .operators_page import write_page

        write_page(options.output, entries)
    return 1 if kinds["wrong"] or kinds["error"] or kinds["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
