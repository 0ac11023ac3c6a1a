"""Two trees of coop on the same network with nothing evicted, in processes that alternate.

    python -m benchmarks.no_slower BEFORE            # a checkout of another commit, built in place
    python -m benchmarks.no_slower BEFORE --device cpu --network resnet50 --size tiny

Each process trains the network of this tree with the coop of one of the two. Rows are JSON; the
last line is the ratio of the medians, now over before, and of each pair.
"""

from __future__ import annotations

import argparse
import json
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


def measure(args: argparse.Namespace) -> None:
    """Prints the row of one process."""
    import coop

    device = torch.device(args.device)
    workload = models.get(args.network, args.size, args.batch)
    with coop.budget(args.budget, device=args.device) as session, device:
        model = workload.make_model(0)
        optimizer = workload.make_optimizer(model)
        batch = workload.make_batch(0, device)
        seconds = []
        for _ in range(WARM_UP + args.steps):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            loss = workload.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()  # waits for the device
            seconds.append(time.perf_counter() - begin)
        num_evictions = session.stats().num_evictions
    row = {
        "coop": str(Path(coop.__file__).resolve().parents[1]),
        "ms": 1e3 * statistics.median(seconds[WARM_UP:]),
        "fastest_ms": 1e3 * min(seconds[WARM_UP:]),
        "num_evictions": num_evictions,
    }
    print(json.dumps(row), flush=True)


def run(root: Path) -> dict[str, float]:
    """The row of a process with the coop of `root`, and the benchmarks of this tree."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "coop").symlink_to(root / "coop")
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.no_slower", *sys.argv[1:], "--measure"],
            env={
                **os.environ,
                "PYTHONPATH": f"{folder}:{ROOT}",
                "PYTHONSAFEPATH": "1",
                "COOP_DEBUG": "0",
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    row: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    assert row.pop("coop") == str(root), row
    assert row["num_evictions"] == 0, row
    return row


def main() -> None:
    """Prints rows and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("--network", default="tv_resnet50")
    parser.add_argument("--size", default="paper", choices=["tiny", "paper"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--budget", default="40GiB")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args)
        return
    rows: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    for _ in range(args.pairs):
        for name, root in (("before", args.before.resolve()), ("now", ROOT)):
            rows[name].append(run(root))
            print(json.dumps({"tree": name, **rows[name][-1]}), flush=True)
    for key in ("ms", "fastest_ms"):
        pairs = [
            now[key] / before[key] for before, now in zip(rows["before"], rows["now"], strict=True)
        ]
        medians = [statistics.median(row[key] for row in rows[name]) for name in ("now", "before")]
        print(
            f"{key}: now / before {medians[0] / medians[1]:.4f}; pairs: median "
            f"{statistics.median(pairs):.4f} ({min(pairs):.3f} to {max(pairs):.3f})"
        )


if __name__ == "__main__":
    main()
