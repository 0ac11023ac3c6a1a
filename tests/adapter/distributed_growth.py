"""1,000 steps on four processes inside a budget, as a table: `make no-growth-distributed`.

Every rank fails by itself when anything of it grows, as in no_growth.py: with DDP, then with FSDP2.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import coop

from . import models
from .harness import AMPLE_BYTES, rounded
from .long_run import resident_bytes
from .no_growth import COLUMNS, grown

STYLES = ("ddp", "fsdp2")
ROWS = 256
RATIO = 0.7
Sample = dict[str, float]


def train(style: str, steps: int, on_step: Callable[[int], None] = lambda step: None) -> None:
    """Every rank has its own data."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(models.mlp(width=32, depth=5), nn.Dropout(0.1))
    if style == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(ROWS, 32)), torch.randint(16, (ROWS,)))
        loss.backward()
        optimizer.step()
        on_step(step)


def measure(rank: int, size: int, store: str, style: str, steps: int, found: Connection) -> None:
    """One rank: the samples of its steps."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(minutes=10),
    )
    with coop.budget(AMPLE_BYTES, device="cpu") as session:
        train(style, 3)
    samples: list[Sample] = []
    with coop.budget(rounded(RATIO * session.stats().peak_bytes), device="cpu") as session:

        def sample(step: int) -> None:
            if (step + 1) % (steps // 20) == 0:
                samples.append(
                    {
                        **session.stats().as_dict(),
                        "step": step + 1,
                        "resident_bytes": resident_bytes(),
                        "cpu_seconds": time.process_time(),
                    }
                )

        train(style, steps, sample)
    found.send(samples)
    dist.barrier()  # nobody closes a connection that another one still uses
    dist.destroy_process_group()


def run(style: str, size: int, steps: int, store: str) -> list[list[Sample]]:
    """The samples of every rank."""
    context: Any = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(target=measure, args=(rank, size, store, style, steps, ends[rank][1]))
        for rank in range(size)
    ]
    for process, (_, theirs) in zip(processes, ends, strict=True):
        process.start()
        theirs.close()
    samples = [ours.recv() for ours, _ in ends]
    for process in processes:
        process.join()
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--styles", default=",".join(STYLES))
    args = parser.parse_args()
    wrong = 0
    print(f"{'':12}{'step':>6}{'evictions':>10}", *(f"{name:>15}" for name in COLUMNS))
    for style in args.styles.split(","):
        with tempfile.TemporaryDirectory() as folder:
            samples = run(style, args.ranks, args.steps, f"{folder}/store")
        for rank, own in enumerate(samples):
            for sample in (own[1], own[-1]):
                counts = (f"{sample[name]:15,.0f}" for name in COLUMNS)
                where = f"{style} rank {rank}"
                print(f"{where:12}{sample['step']:6.0f}{sample['num_evictions']:10,.0f}", *counts)
            problems = grown(own[1:])  # the first has the start of the process in it
            if own[-1]["num_evictions"] == 0:
                problems.append("nothing was evicted")
            wrong += len(problems)
            print("\n".join(problems) or "nothing grew", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
