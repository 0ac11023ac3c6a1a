"""Optimizers that take all tensors at once, in a budget that has no room for all of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

import coop

# 8 Mi elements, in tensors whose kernels are vectorized and some whose are not.
SHAPES = [(1024, 512)] * 14 + [(1023, 511), (1,), (77,), (64, 3, 7, 7), (1024, 1000)]
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

Make = Callable[..., Optimizer]
FUSED: dict[str, Make] = {
    "adam": partial(Adam, fused=True, amsgrad=True, weight_decay=0.01),
    "adamw": partial(AdamW, fused=True),
    "adamw-tensor-lr": partial(AdamW, fused=True, lr=torch.tensor(0.01)),
    "sgd": partial(SGD, lr=0.1, fused=True, momentum=0.9, nesterov=True),
}
FOREACH: dict[str, Make] = {
    "adadelta": partial(Adadelta, foreach=True),
    "adagrad": partial(Adagrad, foreach=True),
    "adam": partial(Adam, foreach=True, amsgrad=True, weight_decay=0.01),
    "adam-capturable": partial(Adam, foreach=True, capturable=True),
    "adamax": partial(Adamax, foreach=True),
    "adamw": partial(AdamW, foreach=True),
    "nadam": partial(NAdam, foreach=True),
    "radam": partial(RAdam, foreach=True),
    "rmsprop": partial(RMSprop, foreach=True, momentum=0.9, centered=True),
    "sgd": partial(SGD, lr=0.1, foreach=True, momentum=0.9),
}


def _digest(tensors: list[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()[:16]


def _update(make: Make, dtype: torch.dtype, scaled: bool = False) -> str:
    """Three steps with any gradients, clipped; a digest of parameters and state."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, device="cuda").to(dtype)) for shape in SHAPES]
    optimizer = make(params)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=scaled)
    for step in range(3):
        for param in params:
            param.grad = (torch.randn(param.shape, device="cuda") * 256).to(dtype)
        if scaled and step == 1:  # this step is left out
            params[3].grad = torch.full_like(params[3], torch.inf)
        scaler.scale(torch.ones((), device="cuda"))
        if not scaled:
            nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        before = None if scaled else [p.grad.clone() for p in params if p.grad is not None]
        scaler.step(optimizer)
        if before is not None:  # an update that does not unscale gradients only reads them
            now = [param.grad for param in params if param.grad is not None]
            assert all(torch.equal(old, new) for old, new in zip(before, now, strict=True))
        scaler.update()
    states = [value for param in params for value in optimizer.state[param].values()]
    return _digest([*params, *[state for state in states if isinstance(state, Tensor)]])


def update_all(budget: str = "", host: str = "0") -> None:
    """Prints a line for each optimizer and type."""
    session = coop.install(budget, host=host) if budget else None
    kinds: list[tuple[str, dict[str, Make], dict[str, Any]]] = [
        ("fused", FUSED, {}),
        ("foreach", FOREACH, {}),
        ("scaled", {"adamw": FUSED["adamw"], "sgd": FUSED["sgd"]}, {"scaled": True}),
        ("unscaled", {"adamw": FOREACH["adamw"]}, {"scaled": True}),
    ]
    for (kind, makes, options), dtype in itertools.product(kinds, DTYPES):
        if options and dtype != torch.float32:
            continue
        for name, make in makes.items():
            print(kind, name, dtype, _update(make, dtype, **options), flush=True)
    if session is not None:
        stats = session.stats()
        assert stats.num_host_loads > 0, stats
        assert stats.peak_bytes <= stats.budget_bytes, stats
