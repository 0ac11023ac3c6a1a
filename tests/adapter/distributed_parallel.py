"""What people train with on more than one process: any number of them runs these.

Each program gives back all that it computed, as those of distributed_programs.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

Program = Callable[[], list[Tensor]]
WIDTH = 64
RATIOS = (0.95, 0.925, 0.9)  # most of it stays: parameters, states, what was received
PARALLEL: dict[str, Program] = {}
# In `make test-distributed` alone.
SLOW: set[str] = set()


def _program(name: str, *, slow: bool = False) -> Callable[[Program], Program]:
    def add(program: Program) -> Program:
        PARALLEL[name] = program
        if slow:
            SLOW.add(name)
        return program

    return add


def _body(depth: int = 6) -> list[nn.Module]:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()]
    return layers


def _batches(count: int, rows: int = 512, *, same: bool = False) -> list[Tensor]:
    """Others in each process, unless they are to be the same."""
    source = torch.Generator().manual_seed(0 if same else 100 + dist.get_rank())
    return [torch.randn(rows, WIDTH, generator=source) for _ in range(count)]


def _local(tensor: Tensor) -> Tensor:
    result: Any = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return result.detach().clone()  # type: ignore[no-any-return]


def _left(model: nn.Module, losses: list[Tensor]) -> list[Tensor]:
    found = [_local(loss) for loss in losses]
    for parameter in model.parameters():
        found.append(_local(parameter))
        if parameter.grad is not None:
            found.append(_local(parameter.grad))
    return found


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]
) -> list[Tensor]:
    losses = []
    for x in batches:
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


# --- DDP ------------------------------------------------------------------------------------------


@_program("ddp, uneven inputs")
def _join() -> list[Tensor]:
    """Process r has r batches more than process 0, which shadows their collectives."""
    model = DistributedDataParallel(nn.Sequential(*_body()), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Join([model]):
        losses = _steps(model, optimizer, _batches(2 + dist.get_rank()))
    return _left(model, losses)


@_program("ddp, uneven inputs and states in shards", slow=True)
def _join_zero() -> list[Tensor]:
    model = DistributedDataParallel(nn.Sequential(*_body()), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01
    )
    with Join([model, optimizer]):
        losses = _steps(model, optimizer, _batches(2 + dist.get_rank()))
    return _left(model, losses)


@_program("ddp, states in shards, step by step", slow=True)
def _zero_overlapping_buckets() -> list[Tensor]:
    model = DistributedDataParallel(
        nn.Sequential(*_body()), static_graph=True, gradient_as_bucket_view=True
    )
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=torch.optim.SGD,
        parameters_as_bucket_view=True,
        lr=0.1,
    )
    return _left(model, _steps(model, optimizer, _batches(3)))


# --- FSDP2 ----------------------------------------------------------------------------------------


def _sharded(**settings: Any) -> nn.Sequential:
    model = nn.Sequential(*_body())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **settings)
    fully_shard(model, mesh=mesh, **settings)
    return model


def _fsdp(**settings: Any) -> Program:
    def program() -> list[Tensor]:
        model = _sharded(**settings)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return _left(model, _steps(model, optimizer, _batches(3)))

    return program


_MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
_program("fsdp, mixed precision")(_fsdp(mp_policy=_MIXED))
_program("fsdp, mixed precision, kept whole", slow=True)(
    _fsdp(mp_policy=_MIXED, reshard_after_forward=False)
)
_program("fsdp, offloaded", slow=True)(_fsdp(offload_policy=CPUOffloadPolicy(pin_memory=False)))


@_program("fsdp, accumulating", slow=True)
def _accumulating() -> list[Tensor]:
    model = _sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for first, second in zip(_batches(2), _batches(2), strict=True):
        model.set_requires_gradient_sync(False)  # type: ignore[operator]
        model(first).pow(2).mean().backward()
        model.set_requires_gradient_sync(True)  # type: ignore[operator]
        losses += _steps(model, optimizer, [second])
    return _left(model, losses)


@_program("fsdp, saved and loaded")
def _checkpointed() -> list[Tensor]:
    """In shards; what is loaded goes on as what was saved."""
    model = _sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = _batches(4, rows=256)
    losses = _steps(model, optimizer, batches[:2])
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    states, optimizer_states = get_state_dict(model, optimizer)
    dcp.save({"model": states, "optimizer": optimizer_states}, checkpoint_id=folder[0])
    went_on = _left(model, _steps(model, optimizer, batches[2:]))
    again = _sharded()
    optimizer = torch.optim.AdamW(again.parameters(), lr=0.01)
    states, optimizer_states = get_state_dict(again, optimizer)
    dcp.load({"model": states, "optimizer": optimizer_states}, checkpoint_id=folder[0])
    set_state_dict(again, optimizer, model_state_dict=states, optim_state_dict=optimizer_states)
    loaded = _left(again, _steps(again, optimizer, batches[2:]))
    assert all(map(torch.equal, went_on, loaded))
    dist.barrier()
    return losses + loaded


# --- tensors in shards ----------------------------------------------------------------------------


@_program("tensor parallel")
def _tensor_parallel() -> list[Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH)) for _ in range(4))
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan: dict[str, ParallelStyle] = {}
    for i in range(4):
        plan |= {f"{i}.0": ColwiseParallel(), f"{i}.2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _left(model, _steps(model, optimizer, _batches(3, same=True)))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 128)
        self.down = nn.Linear(128, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return result


@_program("sequence parallel", slow=True)
def _sequence_parallel() -> list[Tensor]:
    """Between the blocks each process has its part of the rows."""
    torch.manual_seed(1)
    model = nn.Sequential(*(_Block() for _ in range(4)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        plan: dict[str, ParallelStyle] = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
        parallelize_module(block, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _left(model, _steps(model, optimizer, _batches(3, rows=256)))


# --- pipelines and experts ------------------------------------------------------------------------


def _pipeline(schedule_class: Any) -> Program:
    def program() -> list[Tensor]:
        rank, size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(1)
        whole = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)]
        part = nn.Sequential(*whole[rank * 8 // size : (rank + 1) * 8 // size])
        stage = PipelineStage(part, rank, size, torch.device("cpu"))
        schedule = schedule_class(stage, n_microbatches=4, loss_fn=F.mse_loss)
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
        losses: list[Tensor] = []
        for x in _batches(2, rows=1024, same=True):
            if rank == 0:
                schedule.step(x)
            elif rank == size - 1:
                schedule.step(target=x.sin(), losses=losses)
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()
        return _left(part, losses)

    return program


_program("pipeline, one forward and one backward in turn")(_pipeline(Schedule1F1B))
_program("pipeline, all forward first", slow=True)(_pipeline(ScheduleGPipe))


class _Experts(nn.Module):
    """One expert in each process; rows go there and back. How many, the router says."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        torch.manual_seed(10 + dist.get_rank())
        self.expert = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        group, size = dist.group.WORLD, dist.get_world_size()
        scores = self.router(x).softmax(1)
        chosen = scores.argmax(1)
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there, back = sent.tolist(), received.tolist()
        rows = funcol.all_to_all_single_autograd(x[order], back, there, group)
        rows = funcol.all_to_all_single_autograd(self.expert(rows), there, back, group)
        weights = scores.gather(1, chosen[:, None])[order]
        return x.index_add(0, order, rows * weights)


@_program("experts")
def _expert_parallel() -> list[Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(*(_Experts() for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _left(model, _steps(model, optimizer, _batches(3)))


# --- one sequence in parts ------------------------------------------------------------------------
# Torch's own context_parallel knows the attention of GPUs alone: these exchange what it does.


class _Attention(nn.Module):
    """Each process has some of the positions, in order."""

    HEADS = 4

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.then = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.GELU())
        self.down = nn.Linear(256, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        own = len(x)
        parts = self.qkv(self.norm(x)).view(own, 3, self.HEADS, -1).unbind(1)
        attend = self._all_positions if self.by == "all_gather" else self._all_heads
        x = x + self.out(attend(*parts).reshape(own, WIDTH))
        result: Tensor = x + self.down(self.then(x))
        return result

    def _all_positions(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of keys and values."""
        own, group = len(q), dist.group.WORLD
        k, v = (funcol.all_gather_tensor_autograd(part.contiguous(), 0, group) for part in (k, v))
        first = dist.get_rank() * own
        mask = torch.arange(len(k)) <= torch.arange(first, first + own)[:, None]
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)

    def _all_heads(self, *parts: Tensor) -> Tensor:
        """Some heads of all positions, there and back."""
        size = dist.get_world_size()
        there = [self._exchange(torch.cat(part.chunk(size, 1))) for part in parts]
        q, k, v = (part.transpose(0, 1)[None] for part in there)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
        return torch.cat(self._exchange(attended.contiguous()).chunk(size), 1)

    def _exchange(self, x: Tensor) -> Tensor:
        return funcol.all_to_all_single_autograd(x.contiguous(), None, None, dist.group.WORLD)


def _in_context(by: str) -> Program:
    def program() -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(*(_Attention(by) for _ in range(3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return _left(model, _steps(model, optimizer, _batches(3)))

    return program


_program("context parallel, all keys and values")(_in_context("all_gather"))
_program("context parallel, heads for positions", slow=True)(_in_context("all_to_all"))


# --- by hand --------------------------------------------------------------------------------------


@_program("sends and gathers under pressure")
def _under_pressure() -> list[Tensor]:
    """Activations go round while others are made, gathered and given up."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(*_body(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for x in _batches(3, rows=256):
        sent = (x @ x.T).sin()
        received = torch.empty_like(sent)
        works: list[Any] = [
            dist.isend(sent, (rank + 1) % size),
            dist.irecv(received, (rank - 1) % size),
        ]
        loss = model(x).pow(2).mean()
        whole = torch.empty(size * 256, WIDTH)
        features = x.cos() * 2
        works.append(dist.all_gather_into_tensor(whole, features, async_op=True))
        loss.backward()
        for work in works:
            work.wait()
        del works, work
        optimizer.step()
        optimizer.zero_grad()
        kept += [loss.detach(), received * 2, whole + 1, sent.sum(), features]
    return _left(model, kept)
