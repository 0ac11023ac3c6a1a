"""One rank of many, without the others: for plans of programs that need more than one machine.

Under torch's fake process group a collective returns at once and moves nothing. Every rank of a
data-parallel step does the same, so one of them is enough to see what a step needs.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from coop._native import _C

__all__ = ["Ranks", "price_collectives"]


@dataclass(frozen=True)
class Ranks:
    """So many, and the link between two of them."""

    world_size: int
    link_bytes_per_ns: float  # GB/s

    def pretend(self) -> None:
        """From now on, and to its end, this process is rank 0."""
        _pretend_to_be_a_rank(self.world_size)


def _pretend_to_be_a_rank(world_size: int) -> None:
    from torch.distributed import device_mesh
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.testing._internal.distributed.fake_pg import FakeStore  # makes the backend known

    one = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    size = str(world_size)
    os.environ |= one | {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    init = dist.init_process_group

    def init_fake(*_: Any, **__: Any) -> None:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            init("fake", store=FakeStore(), rank=0, world_size=world_size)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_fake
    # A mesh of ranks is a tensor that is read.
    for name, method in list(vars(DeviceMesh).items()):
        if isinstance(method, property) and method.fget is not None:
            setattr(DeviceMesh, name, property(_on_real_tensors(method.fget)))
        elif isinstance(method, staticmethod):
            setattr(DeviceMesh, name, staticmethod(_on_real_tensors(method.__func__)))
        elif isinstance(method, types.FunctionType):
            setattr(DeviceMesh, name, _on_real_tensors(method))
    # Others have imported it by name: `fully_shard` makes a mesh where it is given none.
    make_mesh = device_mesh.init_device_mesh
    for module in list(sys.modules.values()):
        if vars(module).get("init_device_mesh") is make_mesh:
            module.init_device_mesh = _on_real_tensors(make_mesh)  # type: ignore[attr-defined]
    # What sharded tensors will look like is found by running operators on whole ones.
    propagate = "_propagate_tensor_meta_non_cached"
    setattr(ShardingPropagator, propagate, _unseen(getattr(ShardingPropagator, propagate)))
    for owner in (nn.parallel, nn.parallel.distributed):
        setattr(owner, "DistributedDataParallel", _DistributedDataParallel)  # noqa: B010


def _on_real_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return method(*args, **kwargs)

    return guarded


def _unseen(method: Callable[..., Any]) -> Callable[..., Any]:
    method = _on_real_tensors(method)

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        counted = _C.set_meta_counts(False)
        try:
            return method(*args, **kwargs)
        finally:
            _C.set_meta_counts(counted)

    return guarded


class _DistributedDataParallel(nn.Module):
    """Torch's own looks at memory from C++, and here there is none. The same memory and messages:
    gradients are copied to buckets, which are reduced when they are full, and copied back."""

    def __init__(self, module: nn.Module, *_: Any, **settings: Any) -> None:
        super().__init__()
        self.module = module
        views = settings.get("gradient_as_bucket_view", False)
        limit = (settings.get("bucket_cap_mb") or 25) * 2**20
        buckets: list[list[Tensor]] = [[]]
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
            if sum(p.nbytes for p in buckets[-1]) >= limit:
                buckets.append([])
            buckets[-1].append(parameter)
        for bucket in filter(None, buckets):
            _Bucket(bucket, views)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class _Bucket:
    def __init__(self, parameters: list[Tensor], views: bool) -> None:
        self.parameters = parameters
        self.waiting = len(parameters)
        # With views the gradients themselves are the bucket.
        sizes = [p.numel() for p in parameters]
        self.buffer = None if views else torch.zeros(sum(sizes), dtype=parameters[0].dtype)
        self.parts = () if self.buffer is None else torch.split(self.buffer, sizes)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._add)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _add(self, _: Tensor) -> None:
        self.waiting -= 1
        if self.waiting > 0:
            return
        self.waiting = len(self.parameters)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.buffer is None:
            dist.all_reduce_coalesced(gradients)
            return
        for part, gradient in zip(self.parts, gradients, strict=True):
            part.copy_(gradient.flatten())
        dist.all_reduce(self.buffer)
        for part, gradient in zip(self.parts, gradients, strict=True):
            gradient.copy_(part.view_as(gradient))


def price_collectives(entries: bytes, ranks: Ranks, bytes_per_ns: float) -> bytes:
    """The recorded entries, with the time that collectives take on a link.

    Rings: what goes over the link of one rank, at its rate, and nothing beside it. Costs are made
    of the bytes that an operator moves, so those bytes are what changes.
    """
    n = ranks.world_size
    slower = bytes_per_ns / ranks.link_bytes_per_ns
    shares = {
        "allreduce": 2 * (n - 1) / n,
        # Of n + 1 parts, which the operator is given, all but two.
        "gather": (n - 1) / (n + 1),
        "scatter": (n - 1) / (n + 1),
        "alltoall": (n - 1) / (2 * n),
    }
    lines = entries.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if b'"c10d::' not in line:
            continue
        entry = json.loads(line)
        name = entry.get("op", "")
        if not name.startswith("c10d::") or "moved_bytes" not in entry:
            continue
        share = next((share for part, share in shares.items() if part in name), 1.0)
        entry["moved_bytes"] = int(entry["moved_bytes"] * share * slower)
        entry["cost_ns"] = max(entry["cost_ns"], int(entry["moved_bytes"] / bytes_per_ns))
        lines[number] = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
    return b"".join(lines)
