"""All calls: `make test-evicted-arguments`. Writes docs/evicted-arguments.md.

It goes on where it was stopped, if the sources are still the same (tests/surveys.py). With names as
arguments (`module:nn.Linear`) only those are run and nothing is written.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter

import torch

from tests.build_id import build_id
from tests.surveys import ROOT, Entry, answer_names, parser_of, run_survey

from .calls import calls, names
from .compare import FINDINGS, judge
from .evicted_page import write_page

PAGE = ROOT / "docs" / "evicted-arguments.md"
SLOW_SECONDS = 60  # of the processor, for all calls of a name; what is left is counted and reported


def examine(name: str) -> Entry:
    start = time.process_time()
    kinds: Counter[str] = Counter()
    found: dict[str, list[str]] = {}
    num_arguments = num_evicted = 0
    for call in calls(name):
        if time.process_time() - start > SLOW_SECONDS:
            kinds["left out"] += 1
            continue
        judgement = judge(call)
        kinds[judgement.kind] += 1
        num_arguments += judgement.num_arguments
        num_evicted += judgement.num_evicted
        if judgement.kind in FINDINGS:
            detail = f"{call.name}: {' '.join(judgement.detail.split())[:300]}"
            found.setdefault(judgement.kind, []).append(detail)
    return {
        "kinds": kinds,
        "findings": [
            {"kind": kind, "cases": len(those), "first": those[0]} for kind, those in found.items()
        ],
        "num_arguments": num_arguments,
        "num_evicted": num_evicted,
        "seconds": round(time.process_time() - start, 2),
    }


def main() -> int:
    options = parser_of(__doc__, "evicted-arguments", PAGE).parse_args()
    if options.worker:
        torch.set_num_threads(1)
        # Collecting garbage after a call is for what that left, not for torch.
        gc.collect()
        gc.freeze()
        answer_names(examine)
        return 0
    entries = run_survey("tests.evicted", options, names(), build_id("evicted"))
    if entries is None:
        return 1
    kinds: Counter[str] = Counter()
    for entry in entries:
        kinds.update(entry["kinds"])
    print(dict(kinds))
    if not options.names:
        write_page(options.output, entries)
    return 1 if any(kinds[kind] for kind in (*FINDINGS, "crash")) else 0


if __name__ == "__main__":
    sys.exit(main())
