"""The whole operator database: `make test-operators`. Writes docs/operators.md.

Workers are processes of their own, so that a crash is a finding and not the end. It goes on where
it was stopped, if the sources are still the same: the state is a file with a line for every
operator. With names as arguments only those operators are run and nothing is written.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operators.md"
OPERATORS_A_WORKER = 40  # then another one takes over: what one has piled up ends with it
SLOW_SECONDS = 120  # for all samples of an operator; what is left is counted and reported
HUNG_SECONDS = 400  # by the clock, for an operator to answer; then its worker is killed
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

Entry = dict[str, Any]


def examine(name: str) -> Entry:
    """Runs all cases of an operator. Seconds are the processor's: on busy cores it is the same."""
    from .cases import FLOATS, OTHERS, QUICK_SECONDS, cases, dtypes
    from .verdict import judge

    start = time.process_time()
    kinds: Counter[str] = Counter()
    # Those that are not the same, by kind and variant.
    others: dict[tuple[str, str], list[str]] = {}
    pinned: dict[str, str] = {}
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
            pinned.update(verdict.pinned or {})
    findings = [
        {"kind": kind, "cases": len(those), "first": those[0]}
        for (kind, _), those in others.items()
    ]
    seconds = round(time.process_time() - start, 2)
    return {"kinds": kinds, "findings": findings, "pinned": pinned, **sums, "seconds": seconds}


def work() -> None:
    """A worker: reads names of operators and answers each with a line of JSON."""
    import torch

    from coop._native import _C

    from . import verdict  # noqa: F401

    torch.set_num_threads(1)
    # Collecting garbage after a case that raised is for what that left, not for torch.
    gc.collect()
    gc.freeze()
    for name in sys.stdin:
        known = len(_C.operator_names())
        entry = {"operator": name.strip(), **examine(name.strip())}
        entry["met"] = sorted(set(_C.operator_names()[known:]))
        print("\n" + json.dumps(entry), flush=True)


class Survey:
    """Hands operators to workers, each when it is done with the last, and takes their answers."""

    def __init__(self, names: list[str], jobs: int, seconds: float) -> None:
        self._pending = deque(names)
        self._end = time.monotonic() + seconds
        self._entries: SimpleQueue[Entry | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(jobs)]

    def __iter__(self) -> Iterator[Entry]:
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            yield from iter(self._entries.get, None)

    def _serve(self) -> None:
        while self._pending and time.monotonic() < self._end:
            self._run_worker()
        self._entries.put(None)

    def _run_worker(self) -> None:
        command = [sys.executable, "-m", "tests.operators.survey", "--worker"]
        worker = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        name = "nothing"
        for _ in range(OPERATORS_A_WORKER):
            if time.monotonic() > self._end:
                break
            try:
                name = self._pending.popleft()
            except IndexError:
                break
            hung = threading.Timer(HUNG_SECONDS, worker.kill)
            hung.start()
            with contextlib.suppress(BrokenPipeError):
                print(name, file=worker.stdin, flush=True)
            answer = next((line for line in worker.stdout if line.startswith('{"operator"')), None)
            hung.cancel()
            if answer is None:
                break
            self._entries.put(json.loads(answer))
            name = f"the end of a process after {name}"
        worker.stdin.close()
        code = worker.wait()
        if code != 0:
            first = f"{name}: exit code {code}"
            if code == -signal.SIGKILL:
                first += f" (killed: out of memory, or no answer in {HUNG_SECONDS} seconds)"
            findings = [{"kind": "crash", "cases": 1, "first": first}]
            self._entries.put({"operator": name, "kinds": {"crash": 1}, "findings": findings})


def read_state(path: Path, build: str) -> list[Entry]:
    if path.exists():
        first, *lines = path.read_text().splitlines()
        if json.loads(first) == {"build": build}:
            return [json.loads(line) for line in lines]
        print(f"{path} is of other sources: starting anew", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"build": build}) + "\n")
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help="used by itself")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begins no operator after that many"
    )
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "operators.jsonl")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page that is written")
    parser.add_argument("names", nargs="*", help="operators; all of them if none")
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return 0
    from tests.build_id import build_id

    from .cases import MODULES, OPERATORS

    entries: list[Entry] = []
    if not arguments.names:
        entries = read_state(arguments.state, build_id("operators"))
    done = {entry["operator"] for entry in entries}
    # The longest first: at the end no process waits for one of them.
    everything = dict.fromkeys([*LONGEST, *sorted(OPERATORS), *sorted(MODULES)])
    everything = [name for name in everything if name in OPERATORS or name in MODULES]
    names = [name for name in arguments.names or everything if name not in done]
    for entry in Survey(names, arguments.jobs, arguments.seconds):
        entries.append(entry)
        if not arguments.names:
            with arguments.state.open("a") as state:
                state.write(json.dumps(entry) + "\n")
        print(f"{entry['operator']:50} {entry.get('seconds', 0):7.2f} s  {entry['kinds']}")
        for finding in entry["findings"]:
            print(f"    {finding['kind']}: {finding['cases']} cases, {finding['first']}")
        sys.stdout.flush()
    kinds: Counter[str] = Counter()
    for entry in entries:
        kinds.update(entry["kinds"])
    print(dict(kinds))
    unfinished = set(names) - {entry["operator"] for entry in entries}
    if unfinished:
        print(f"{len(unfinished)} operators are left: run it again to go on")
        return 1
    if not arguments.names:
        from .page import write_page

        write_page(arguments.output, entries)
    return 1 if kinds["wrong"] or kinds["error"] or kinds["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
