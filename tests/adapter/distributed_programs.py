"""What the two processes of distributed.py run. Each program gives back all that it computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

Program = Callable[[], list[Tensor]]

COLLECTIVES: dict[str, Program] = {}
TRAININGS: dict[str, Program] = {}
_num_followed = 0


def _collective(program: Program) -> Program:
    COLLECTIVES[program.__name__] = program
    return program


def _made(shape: tuple[int, ...] = (64, 64), seed: int = 0) -> Tensor:
    """Recomputable, and another one in each process."""
    x = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    return (x * (2 + dist.get_rank()) + seed).sin()


def _crowd() -> Tensor:
    """Takes and gives back memory: what it can, it pushes out."""
    x = torch.ones(512, 512)
    for _ in range(20):
        x = x * 1.5 + 1
    return x.sum()


@_collective
def all_reduce() -> list[Tensor]:
    y = _made() * 2
    before = y * 3  # of what it was
    dist.all_reduce(y)
    after = y + 1
    return [y, before, after, _crowd()]


@_collective
def all_reduce_of_a_slice() -> list[Tensor]:
    y = _made((4, 32, 32)) * 2
    before = y * 3
    work = dist.all_reduce(y[1], async_op=True)
    beside = y[2] * 5
    crowd = _crowd()
    work.wait()
    return [y, before, beside, crowd, y + 1]


@_collective
def a_work_that_is_dropped() -> list[Tensor]:
    y = _made((256, 256)) * 2
    future = dist.all_reduce(y, async_op=True).get_future()
    crowd = _crowd()
    future.wait()
    return [y, crowd]


@_collective
def what_follows_on_a_thread_of_gloo() -> list[Tensor]:
    """Process 0 says what follows before process 1 takes part: it runs where the sum is made."""
    store = dist.distributed_c10d._get_default_store()
    y, weight = _made() * 2, _made(seed=1) * 2

    def weighted(future: Any) -> Tensor:
        result: Tensor = future.value()[0] * weight
        return result + weight

    global _num_followed
    _num_followed += 1
    if dist.get_rank() == 1:
        store.wait([f"follows {_num_followed}"])
    follows = dist.all_reduce(y, async_op=True).get_future().then(weighted)
    if dist.get_rank() == 0:
        store.set(f"follows {_num_followed}", "")
    crowd = _crowd()
    return [follows.wait(), weight, crowd]


@_collective
def isend_and_irecv() -> list[Tensor]:
    other = 1 - dist.get_rank()
    x = _made((256, 256)) * 2 + 1
    received = torch.empty(256, 256)
    before = received.zero_() + 1
    works = [dist.isend(x, other), dist.irecv(received, other)]
    crowd = _crowd()
    for work in works:
        work.wait()
    return [x, received, before, crowd, received * 2]


@_collective
def what_is_sent_dies_before_it_arrives() -> list[Tensor]:
    if dist.get_rank() == 0:
        work = dist.isend(_made((256, 256)) * 2 + 1, 1)
        crowd = _crowd()
        dist.barrier()
        work.wait()
        return [crowd]
    dist.barrier()
    received = torch.zeros(256, 256)
    work = dist.irecv(received, 0)
    work.wait()
    return [received]


@_collective
def batched_sends() -> list[Tensor]:
    other = 1 - dist.get_rank()
    x, y = _made() * 2, torch.zeros(64, 64)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
    )
    crowd = _crowd()
    for work in works:
        work.wait()
    return [x, y, crowd]


@_collective
def all_gather() -> list[Tensor]:
    x = _made() * 2
    parts = [torch.zeros(64, 64) for _ in range(2)]
    before = parts[1] + 1
    work = dist.all_gather(parts, x, async_op=True)
    crowd = _crowd()
    work.wait()
    return [x, *parts, before, crowd]


@_collective
def all_gather_into_tensor() -> list[Tensor]:
    x = _made() * 2
    whole = torch.zeros(128, 64)
    work = dist.all_gather_into_tensor(whole, x, async_op=True)
    crowd = _crowd()
    work.wait()
    return [x, whole, crowd, whole * 2]


@_collective
def reduce_scatter() -> list[Tensor]:
    x = _made() * 2
    part = torch.zeros(32, 64)
    work = dist.reduce_scatter_tensor(part, x, async_op=True)
    crowd = _crowd()
    work.wait()
    listed = torch.zeros(32, 64)
    dist.reduce_scatter(listed, [part * 2, part * 3])
    return [x, part, listed, crowd]


@_collective
def broadcast_and_reduce() -> list[Tensor]:
    x, y = _made() * 2, _made(seed=1) * 2
    dist.broadcast(x, 1)
    dist.reduce(y, 0)
    return [x, _crowd(), *([y] if dist.get_rank() == 0 else [])]


@_collective
def scatter_and_gather() -> list[Tensor]:
    x = torch.zeros(64, 64)
    first = dist.get_rank() == 0
    dist.scatter(x, [_made(seed=i) * 2 for i in range(2)] if first else None, 0)
    parts = [torch.zeros(64, 64) for _ in range(2)]
    dist.gather(x, parts if first else None, 0)
    return [x, *parts, _crowd()]


@_collective
def all_to_all() -> list[Tensor]:
    x = _made() * 2
    y = torch.zeros(64, 64)
    work = dist.all_to_all_single(y, x, async_op=True)
    crowd = _crowd()
    work.wait()
    return [x, y, crowd]


@_collective
def coalesced() -> list[Tensor]:
    tensors = [_made(seed=i) * 2 for i in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return [*tensors, _crowd()]


@_collective
def objects() -> list[Tensor]:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, {"rank": dist.get_rank(), "x": _made() * 2})
    told = [found[0]["x"] * 2]
    dist.broadcast_object_list(told, 0)
    return [found[0]["x"], found[1]["x"], told[0]]


@_collective
def functional() -> list[Tensor]:
    x = _made() * 2
    group = dist.group.WORLD
    reduced = funcol.all_reduce(x, "sum", group)
    gathered = funcol.all_gather_tensor(x, 0, group)
    scattered = funcol.reduce_scatter_tensor(x, "sum", 0, group)
    exchanged = funcol.all_to_all_single(x, None, None, group)
    told = funcol.broadcast(x, 1, group)
    several = funcol.all_reduce_coalesced([x, x + 1], "sum", group)
    crowd = _crowd()
    waited = [funcol.wait_tensor(y) for y in (reduced, gathered, scattered, exchanged, told)]
    return [x, crowd, *waited, *(funcol.wait_tensor(y) for y in several), waited[0] * 2]


@_collective
def functional_with_gradients() -> list[Tensor]:
    x = (_made() * 2).requires_grad_()
    group = dist.group.WORLD
    y = funcol.all_gather_tensor_autograd(x * 2, 0, group)
    z = funcol.reduce_scatter_tensor_autograd(y * 3, "sum", 0, group)
    w = funcol.all_to_all_single_autograd(z * 4, None, None, group)
    w.pow(2).sum().backward()
    assert x.grad is not None
    return [x.detach(), x.grad, w.detach(), _crowd()]


@_collective
def sharded_tensors() -> list[Tensor]:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    x = distribute_tensor(torch.rand(64, 64), mesh, [Shard(0)])
    w = distribute_tensor(torch.rand(64, 64), mesh, [Shard(1)]).requires_grad_()
    y = (x @ w).relu() @ w
    y.redistribute(mesh, [Shard(1)]).sum().backward()
    assert isinstance(w.grad, DTensor)
    full = y.full_tensor()
    assert isinstance(full, Tensor)
    return [full.detach(), w.grad.full_tensor(), _crowd()]


# --- training -------------------------------------------------------------------------------------


def _network() -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 4))


class _Branches(nn.Module):
    """Uses one of two layers, another one every second step."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _network()
        self.heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        result: Tensor = self.heads[self.num_calls % 2](self.body(x))
        return result


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, set_to_none: bool = True
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    left = []
    for _ in range(4):
        x = torch.randn(1024, 64, generator=generator)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        left.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        left.append(loss.detach())
    return left


def _state(model: nn.Module) -> list[Tensor]:
    result = [p.detach() for p in model.parameters()]
    result += [p.grad for p in model.parameters() if p.grad is not None]
    return [x.full_tensor() if isinstance(x, DTensor) else x for x in result]


def _ddp(module: Callable[[], nn.Module] = _network, **settings: Any) -> Program:
    state, hook = settings.pop("hook", (None, None))
    set_to_none = settings.pop("set_to_none", True)

    def program() -> list[Tensor]:
        model = DistributedDataParallel(module(), **settings)
        if hook is not None:
            model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return _train(model, optimizer, set_to_none=set_to_none) + _state(model)

    return program


def _hook(state: None, bucket: Any) -> Any:
    """Takes memory of its own, and gives the mean back in a tensor of its own."""
    halved = bucket.buffer() * 0.5
    return dist.all_reduce(halved, async_op=True).get_future().then(lambda f: f.value()[0] + 0)


# Torch looks at them, and they must not be strings.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}


def _low_rank() -> list[Tensor]:
    model = DistributedDataParallel(_network())
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _train(model, optimizer) + _state(model)


def _no_sync() -> list[Tensor]:
    model = DistributedDataParallel(_network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.randn(1024, 64, generator=generator)).pow(2).mean().backward()
        model(torch.randn(1024, 64, generator=generator)).pow(2).mean().backward()
        optimizer.step()
    return _state(model)


def _zero() -> list[Tensor]:
    model = DistributedDataParallel(_network())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01
    )
    return _train(model, optimizer) + _state(model)


def _fsdp(*, reshard: bool) -> Program:
    def program() -> list[Tensor]:
        model = _network()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        left = [x.full_tensor() if isinstance(x, DTensor) else x for x in _train(model, optimizer)]
        return left + _state(model)

    return program


def _by_hand() -> list[Tensor]:
    """Gradients are reduced as they come, without waiting."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    works: list[Any] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(1024, 64, generator=generator)).pow(2).mean().backward()
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()
    return _state(model)


TRAININGS |= {
    "ddp": _ddp(),
    "ddp, static graph": _ddp(static_graph=True),
    "ddp, gradients are views": _ddp(gradient_as_bucket_view=True),
    "ddp, gradients are views that stay": _ddp(gradient_as_bucket_view=True, set_to_none=False),
    "ddp, small buckets": _ddp(bucket_cap_mb=0.02, gradient_as_bucket_view=True),
    "ddp, unused parameters": _ddp(_Branches, find_unused_parameters=True),
    "ddp, compressed": _ddp(hook=(None, default_hooks.fp16_compress_hook)),
    "ddp, a hook": _ddp(hook=(None, _hook)),
    "ddp, low rank": _low_rank,
    "ddp, no_sync": _no_sync,
    "ddp, zero": _zero,
    "gradients reduced by hand": _by_hand,
    "fsdp": _fsdp(reshard=True),
    "fsdp, kept whole": _fsdp(reshard=False),
}
