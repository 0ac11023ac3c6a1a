"""Two trees of coop on the same network with nothing evicted, in turns of a few steps each.

    mkdir -p build/before && git archive COMMIT | tar -x -C build/before
    (cd build/before && python setup.py --quiet build_ext --inplace)
    python -m benchmarks.no_slower build/before
    python -m benchmarks.no_slower build/before --device cpu --network resnet50 --size tiny

Two processes train the network of this tree, each with the coop of one of the two. They take turns,
so that both meet the same neighbours on the machine: one waits while the other one makes a few
steps. A pair is a turn of each; which one is first alternates. What is printed is the median of the
pairs' ratios, now over before, and an interval that holds the true median in 95 of 100 such runs
(by ranks: it assumes nothing of how the times are spread).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import models

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 12  # a GPU's steps are quiet from the fifth on
KEYS = ("wall_ms", "cpu_ms")


def measure(args: argparse.Namespace) -> None:
    """Makes a turn for each line that comes, and answers with a line of JSON."""
    import coop

    device = torch.device(args.device)
    workload = models.get(args.network, args.size, args.batch)
    with coop.budget(args.budget, device=args.device) as session, device:
        model = workload.make_model(0)
        optimizer = workload.make_optimizer(model)
        batch = workload.make_batch(0, device)

        def turn(num_steps: int) -> dict[str, float]:
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(num_steps):
                optimizer.zero_grad(set_to_none=True)
                loss = workload.loss(model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss.item()  # waits for the device
            return {
                "wall_ms": 1e3 * (time.perf_counter() - wall) / num_steps,
                "cpu_ms": 1e3 * (time.process_time() - cpu) / num_steps,
            }

        turn(WARM_UP)
        print(Path(coop.__file__).resolve().parents[1], flush=True)
        for _ in sys.stdin:
            print(json.dumps(turn(args.steps)), flush=True)
        assert session.stats().num_evictions == 0


class Trainer:
    """A process with the coop of `root`, and the benchmarks of this tree."""

    def __init__(self, root: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "coop").symlink_to(root / "coop")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.no_slower", *sys.argv[1:], "--measure"],
            env={
                **os.environ,
                "PYTHONPATH": f"{folder}:{ROOT}",
                "PYTHONSAFEPATH": "1",
                "COOP_DEBUG": "0",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = self._answer()
        assert found == str(root), f"{found} is not {root}"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"ended with exit code {self.process.wait()}"
        return line.rstrip("\n")

    def turn(self) -> dict[str, float]:
        """Times of a step, mean of the turn."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        row: dict[str, float] = json.loads(self._answer())
        return row

    def end(self) -> None:
        """It says so if it evicted anything."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait() == 0


def interval(values: list[float]) -> tuple[float, float]:
    """Holds the median that the values are drawn around with a probability of at least 0.95."""
    ordered, n = sorted(values), len(values)
    # How many lie below the median is binomial.
    below, cut = 0.0, 0
    while below + math.comb(n, cut) / 2**n <= 0.025:
        below += math.comb(n, cut) / 2**n
        cut += 1
    first = max(cut - 1, 0)
    return ordered[first], ordered[n - 1 - first]


def main() -> None:
    """Prints rows and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("--network", default="tv_resnet50")
    parser.add_argument("--size", default="paper", choices=["tiny", "paper"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--budget", default="40GiB", help="of each")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args)
        return
    rows: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {
            name: Trainer(root, Path(folder, name))
            for name, root in (("before", args.before.resolve()), ("now", ROOT))
        }
        for pair in range(args.pairs):
            for name in ("before", "now") if pair % 2 == 0 else ("now", "before"):
                rows[name].append(trainers[name].turn())
        for trainer in trainers.values():
            trainer.end()
    for key in KEYS:
        before, now = ([row[key] for row in rows[name]] for name in ("before", "now"))
        pairs = [b / a for a, b in zip(before, now, strict=True)]
        low, high = interval(pairs)
        print(
            f"{key}: before {statistics.median(before):.3f}, now {statistics.median(now):.3f}; "
            f"now / before: median of {len(pairs)} pairs {statistics.median(pairs):.4f} "
            f"(95%: {low:.4f} to {high:.4f}); fastest turns {min(now) / min(before):.4f}"
        )


if __name__ == "__main__":
    main()
