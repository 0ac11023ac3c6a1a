"""The small network and the few steps that many of the programs share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.adapter.outcome import Outcome, collect


def mlp(width: int = 64, depth: int = 4) -> nn.Sequential:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    *,
    steps: int = 3,
    rows: int = 256,
    lr: float = 0.05,
    **others: Tensor,
) -> Outcome:
    """Some steps of SGD; `run` gives the logits in its own way."""
    optimizer = SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(steps):
        logits = run(torch.randn(rows, 64))
        loss = F.cross_entropy(logits, torch.randint(10, (rows,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer], **others)
