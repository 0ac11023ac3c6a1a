"""Programs of two processes, and what one of them runs: `python -m tests.elsewhere.processes`.

Both meet in a file; no ports. What a process found goes to a file of its own. A budget that one of
them does not fit is the last: it ends, and the other one's collective with it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

from tests.adapter.harness import assert_identical, peak_bytes, rounded, run_plain, try_budget
from tests.adapter.outcome import Outcome, Registry, collect

from .runs import Row

RANKS = 2
SHARES = (0.9, 0.85, 0.8, 0.75)  # of a process's own peak
# Exit codes: this process did not fit, or lost the other one.
DOES_NOT_FIT, LEFT_ALONE = 3, 4
DISTRIBUTED = Registry()


def mlp(depth: int = 4) -> nn.Sequential:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def batch(rows: int = 512) -> tuple[Tensor, Tensor]:
    """Another one in each process."""
    source = torch.Generator().manual_seed(100 + dist.get_rank())
    return torch.randn(rows, 64, generator=source), torch.randint(10, (rows,), generator=source)


def ddp(seed: int, **options: bool) -> Outcome:
    """A step with all gradients, then two micro-batches of which the first is not reduced."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.03, **options)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(3):
        if step == 2 and "static_graph" not in options:
            with model.no_sync():
                F.cross_entropy(model(batch()[0]), batch()[1]).backward()
        loss = F.cross_entropy(model(batch()[0]), batch()[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step != 1)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses += [loss.detach(), total]
    return collect(losses, modules=[model], optimizers=[optimizer])


@DISTRIBUTED
def ddp_with_accumulation(seed: int) -> Outcome:
    return ddp(seed)


@DISTRIBUTED
def ddp_with_a_static_graph(seed: int) -> Outcome:
    return ddp(seed, static_graph=True)


@DISTRIBUTED
def ddp_with_gradients_as_views_of_buckets(seed: int) -> Outcome:
    return ddp(seed, gradient_as_bucket_view=True)


@DISTRIBUTED
def ddp_with_optimizer_states_in_shards(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=1e-3)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(batch()[0]), batch()[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


def local(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """What this process holds of parameters and gradients."""
    found = {}
    for name, parameter in parameters.items():
        for what, tensor in ((name, parameter.data), (f"{name} gradient", parameter.grad)):
            if tensor is not None:
                found[what] = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found


@DISTRIBUTED
def fsdp2_with_mixed_precision(seed: int) -> Outcome:
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        rows, labels = batch()
        loss = F.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        gradients = local(dict(model.named_parameters()))
        if len(losses) < 3:
            optimizer.zero_grad()
    return collect(losses, **gradients)


@DISTRIBUTED
def tensor_parallel(seed: int) -> Outcome:
    """Columns, then rows; the data are the same in both processes."""
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (RANKS,))
    model = mlp(6)
    plan: dict[str, ParallelStyle] = {}
    for index in range(0, 12, 4):
        plan |= {str(index): ColwiseParallel(), str(index + 2): RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(3):
        source = torch.Generator().manual_seed(step)
        rows = torch.randn(512, 64, generator=source)
        labels = torch.randint(10, (512,), generator=source)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, **local(dict(model.named_parameters())))


@DISTRIBUTED
def pipeline_of_two_stages(seed: int) -> Outcome:
    """Four micro-batches, one forward and one backward in turn."""
    torch.manual_seed(seed)
    rank = dist.get_rank()
    whole = mlp(12)
    part = whole[:12] if rank == 0 else whole[12:]
    stage = PipelineStage(part, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=F.cross_entropy)
    optimizer = SGD(part.parameters(), lr=0.1)
    losses: list[Tensor] = []
    for step in range(2):
        source = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(torch.randn(1024, 64, generator=source))
        else:
            labels = torch.randint(10, (1024,), generator=source)
            schedule.step(target=labels, losses=(each := []))
            losses += each
        optimizer.step()
    return collect([loss.detach() for loss in losses], modules=[part])


@DISTRIBUTED
def collectives_by_hand(seed: int) -> Outcome:
    """Averaged gradients, gathered features, and results that are used right after the call."""
    torch.manual_seed(seed)
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    kept = []
    rank = dist.get_rank()
    for _ in range(3):
        features = model(batch()[0])
        everyone = [torch.empty_like(features) for _ in range(RANKS)]
        dist.all_gather(everyone, features.detach())
        everyone[rank] = features
        rows = F.normalize(torch.cat([each[:64] for each in everyone]), dim=1)
        loss = F.cross_entropy(rows @ rows.T / 0.1, torch.arange(len(rows)).roll(1))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS
        optimizer.step()
        message = features.detach() * 2 + 1
        work = dist.isend(message, 1 - rank) if rank == 0 else None
        if work is not None:
            del message
            work.wait()
        else:
            received = torch.empty(512, 10)
            dist.recv(received, 1 - rank)
            kept.append(received)
        doubled = features.detach() * 2
        dist.all_reduce(doubled)
        kept += [loss.detach(), doubled]
    return collect(modules=[model], kept=kept)


def main(name: str, rank: int, folder: Path) -> None:
    """Plain, with room for everything, then in smaller and smaller budgets; a row goes to a file
    for each that this process fits."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meet'}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=600),
    )
    program = DISTRIBUTED[name]
    expected = run_plain(program)
    assert_identical(expected, run_plain(program))
    peak = peak_bytes(program)
    rows = []
    for share in SHARES:
        budget_bytes = rounded(share * peak)
        try:
            fit = try_budget(program, budget_bytes)
        except RuntimeError as error:
            if "Connection closed by peer" not in str(error):
                raise
            os._exit(LEFT_ALONE)
        if fit is None:
            os._exit(DOES_NOT_FIT)  # at once: a process group would wait for the other one
        assert_identical(expected, fit.outcome)
        assert fit.stats.num_evictions > 0
        stats = fit.stats
        row = Row(name, f"{share}", budget_bytes, peak, stats.num_evictions, stats.num_replays)
        rows.append(asdict(row))
        (folder / f"rows-{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
