"""Compiled blocks: graphs of Triton kernels are evicted and replayed as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config

import coop
from coop._native import _C


class Block(torch.nn.Module):
    """A residual block with a norm, an activation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(512)
        self.wide, self.narrow = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's input plus what it makes of it."""
        return x + self.dropout(self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x)))))


def train_compiled(backend: str, budget: str = "") -> None:
    """Trains, in a budget if there is one; prints a checksum and what it took."""
    session = coop.install(budget) if budget else None
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(8))).cuda()
    for block in model:
        block.compile(backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    losses = []
    for _ in range(8):
        x = torch.randn(4096, 512, device="cuda")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    digest = hashlib.sha256()
    for tensor in losses + list(model.state_dict().values()):
        digest.update(tensor.cpu().numpy().tobytes())
    print(digest.hexdigest())
    if session is not None:
        stats = session.stats()
        print(stats.needed_bytes, stats.num_evictions, stats.num_replays)


def _flex(x: torch.Tensor) -> torch.Tensor:
    """Causal attention whose scores depend on the distance."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = x.view(4, 1024, 8, 64).transpose(1, 2)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 1024, 1024, device="cuda")
    y = flex_attention(q, q * 0.5, q + 1, lambda s, b, h, i, j: s - 0.01 * (i - j), mask)
    return x + y.transpose(1, 2).reshape(4096, 512)


def _kernel(x: torch.Tensor) -> torch.Tensor:
    from tests.cuda.programs.own_kernel import scaled

    return x + scaled(torch.tanh(x), 0.5)


def _recomputed(x: torch.Tensor) -> torch.Tensor:
    """Its backward graph draws the dropout again, from a generator that it is given."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(
        lambda y: y + torch.nn.functional.dropout(torch.sin(y)), x, use_reentrant=False
    )


def _product(x: torch.Tensor) -> torch.Tensor:
    y = x.view(1024, 2048)
    return x + torch.tanh(y @ (y.T @ y).sin()).view_as(x)


# What is compiled, and how.
_KINDS = (
    ("flex attention", _flex, {}),
    ("own kernel", _kernel, {}),
    ("own kernel, eager", _kernel, None),
    ("checkpoint inside", _recomputed, {"fullgraph": True}),
    ("CUDA graphs", _recomputed, {"mode": "reduce-overhead"}),
)


def _train_kind(function: Callable[..., torch.Tensor], options: dict[str, Any] | None) -> str:
    torch._dynamo.reset()
    torch.manual_seed(0)
    step = function if options is None else torch.compile(function, **options)
    weight = torch.ones(512, device="cuda", requires_grad=True)
    digest = hashlib.sha256()
    for _ in range(3):
        x = torch.randn(4096, 512, device="cuda") * weight
        for _ in range(3):
            x = step(x).clone()
        x.square().mean().backward()
        for tensor in (x, weight.grad):
            assert tensor is not None
            digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def train_kinds(budget: str = "") -> None:
    """Trains each kind; prints a checksum of it. In a budget everything is evicted all the time."""
    session = coop.install(budget, paranoid=True) if budget else None
    for name, function, options in _KINDS:
        print(name, _train_kind(function, options))
    if session is not None:
        print(session.stats().num_evictions, session.stats().num_replays)


def _allocated_mib(session: coop.Session, options: dict[str, Any]) -> int:
    """All that the arena hands out while a function is compiled and trained."""
    session.events.record()
    with torch._inductor.config.patch(force_disable_caches=True):
        _train_kind(_product, options)
    log = session._engine.events().view(_C.event_dtype())
    placed = log[log["kind"] == _C.event_kinds()["ALLOCATE"]]
    return int(placed["bytes"].sum()) >> 20


def autotune(budget: str) -> None:
    """Prints MiB that are allocated without and with kernels that are tried out, and the peak."""
    session = coop.install(budget)
    torch.randn(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")  # loads libraries
    print(_allocated_mib(session, {}))
    print(_allocated_mib(session, {"mode": "max-autotune-no-cudagraphs"}))
    print(session.stats().peak_bytes >> 20)
