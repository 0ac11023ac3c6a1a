"""The whole operator database: `make test-operators`. Writes docs/operators.md.

Workers are processes of their own, so that a crash is a finding and not the end. With names as
arguments only those operators are run and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operators.md"


def work(names: list[str], everything: bool) -> None:
    """Runs the operators and prints a line of JSON for each, and one before it starts."""
    import torch

    from coop._native import _C

    from .cases import FLOATS, OPERATORS, OTHERS, cases, dtypes
    from .verdict import judge

    torch.set_num_threads(1)
    for name in names:
        print(json.dumps({"begin": name}), flush=True)
        start = time.perf_counter()
        kinds: Counter[str] = Counter()
        findings: list[str] = []
        pinned: dict[str, str] = {}
        num_operators = num_replays = num_evictions = 0
        for dtype in dtypes(name, FLOATS + OTHERS if everything else FLOATS):
            began = time.perf_counter()
            for case in cases(name, dtype):
                # Types other than float are for what runs quickly.
                if dtype not in FLOATS and time.perf_counter() - began > 2:
                    kinds["left out"] += 1
                    continue
                verdict = judge(case)
                kinds[verdict.kind] += 1
                if verdict.kind in ("wrong", "error", "varies", "raw"):
                    findings.append(f"{verdict.kind}: {case.name}: {verdict.detail}")
                if verdict.stats is not None:
                    num_operators += verdict.stats.num_operators
                    num_replays += verdict.stats.num_replays
                    num_evictions += verdict.stats.num_evictions
                pinned.update(verdict.pinned or {})
        print(
            json.dumps(
                {
                    "end": name,
                    "kinds": kinds,
                    "findings": findings,
                    "pinned": pinned,
                    "num_operators": num_operators,
                    "num_replays": num_replays,
                    "num_evictions": num_evictions,
                    "seconds": round(time.perf_counter() - start, 2),
                    "variants": OPERATORS[name].aten_name,
                }
            ),
            flush=True,
        )
    print(json.dumps({"met": sorted(set(_C.operator_names()))}), flush=True)


def survey(names: list[str], everything: bool) -> Iterator[dict]:
    """Starts workers until all operators had their turn."""
    pending = list(names)
    while pending:
        command = [sys.executable, "-m", "tests.operators.survey", "--worker"]
        command += ["--all"] if everything else []
        worker = subprocess.Popen(
            [*command, *pending[:40]], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        began = None
        done = 0
        assert worker.stdout is not None
        for line in worker.stdout:
            if not line.startswith("{"):
                continue
            entry = json.loads(line)
            if "begin" in entry:
                began = entry["begin"]
                continue
            if "end" in entry:
                done, began = done + 1, None
            yield entry
        code = worker.wait()
        if code != 0 and began is None:
            yield {"end": pending[0], "kinds": {}, "findings": [f"exit code {code} at the end"]}
            done = max(done, 1)
        elif code != 0:
            yield {
                "end": began,
                "kinds": {"crash": 1},
                "findings": [f"crash: {began}: code {code}"],
            }
            done += 1
        pending = pending[done:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help="run them here, print JSON")
    parser.add_argument(
        "--all", action="store_true", help="types other than float32 and float64 too"
    )
    parser.add_argument("names", nargs="*", help="operators; all of them if none")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.names, arguments.all)
        return 0
    from .cases import OPERATORS

    names = arguments.names or sorted(OPERATORS)
    entries = []
    for entry in survey(names, arguments.all):
        entries.append(entry)
        if "end" in entry:
            print(f"{entry['end']:50} {entry.get('seconds', 0):7.2f} s  {dict(entry['kinds'])}")
            for finding in entry["findings"]:
                print("    " + " ".join(finding.split())[:300])
            sys.stdout.flush()
    kinds: Counter[str] = Counter()
    for entry in entries:
        kinds.update(entry.get("kinds", {}))
    print(dict(kinds))
    if not arguments.names:
        from .page import write_page

        write_page(PAGE, entries)
    return 1 if kinds["wrong"] or kinds["error"] or kinds["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
