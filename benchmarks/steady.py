"""Step time of a network once its steps are followed: one process, one row of JSON.

    python -m benchmarks.steady llama_1b                       # plain torch
    python -m benchmarks.steady llama_1b --checkpoint
    python -m benchmarks.steady llama_1b --budget 14.5GiB
    python -m benchmarks.steady llama_1b --budget 14.5GiB --bits

With `--bits` kernels are deterministic, and the row has a checksum of all parameters: runs of the
same network with and without a budget must have the same. Networks are those of the zoo and of
`benchmarks.models.PRACTICE`, at full size on a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import coop
from benchmarks import models
from benchmarks.models import Workload
from benchmarks.zoo.networks import NETWORKS

# Steps after which a schedule is followed, with a few to spare.
WARM_UP = 8


def workload_named(name: str) -> Workload:
    """Of the practice models, or of the zoo."""
    return models.get(name, "paper") if name in models.PRACTICE else NETWORKS[name].make()


def train(workload: Workload, args: argparse.Namespace) -> tuple[Callable[[], Tensor], Any]:
    """A function that does one step and returns its loss; and the model."""
    model = workload.make_model(0)
    if args.checkpoint:
        workload.checkpoint(model)
    optimizer = workload.make_optimizer(model)
    for group in optimizer.param_groups:
        group |= {"foreach": None, "fused": torch.cuda.is_available()}
    batch = workload.make_batch(0, "cuda" if torch.cuda.is_available() else "cpu")

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step, model


def checksum(model: torch.nn.Module, losses: list[float]) -> str:
    """Of all parameters and losses."""
    found = hashlib.sha256(repr(losses).encode())
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    """Prints the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--budget")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--bits", action="store_true")
    parser.add_argument("--steps", type=int, default=WARM_UP + 8)
    args = parser.parse_args()
    if args.bits:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    workload = workload_named(args.name)
    session = None if args.budget is None else coop.install(args.budget)
    row: dict[str, Any] = {"model": args.name, "budget": args.budget} | (
        {"checkpoint": True} if args.checkpoint else {}
    )
    with torch.device("cuda"):
        step, model = train(workload, args)
        torch.cuda.synchronize()
        seconds: list[float] = []
        losses: list[float] = []
        before: dict[str, Any] = {}
        for number in range(args.steps):
            if number + 1 == args.steps and session is not None:
                before = session.stats().as_dict()
            begin = time.perf_counter()
            losses.append(float(step()))
            seconds.append(time.perf_counter() - begin)
    measured = seconds[WARM_UP:] or seconds
    row["ms"] = round(1e3 * statistics.median(measured), 1)
    row["ms_range"] = [round(1e3 * min(measured), 1), round(1e3 * max(measured), 1)]
    row["first_ms"] = [round(1e3 * s) for s in seconds[:WARM_UP]]
    row["reserved_gib"] = round(torch.cuda.max_memory_reserved() / 2**30, 2)
    if session is not None:
        after = session.stats().as_dict()
        last = {key: after[key] - before[key] for key in ("replay_ns", "compute_ns")}
        row["replay_share"] = round(last["replay_ns"] / last["compute_ns"], 4)
        for key in ("num_searches", "num_evictions", "num_replays", "moved_bytes"):
            row[f"last_{key}"] = after[key] - before[key]
        for key in ("num_schedules", "num_followed", "num_left"):
            row[key] = after[key]
    if args.bits:
        row["bits"] = checksum(model, losses)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
