"""Data, and the training loop that everybody writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

Batch = tuple[Tensor, Tensor]


def rows(steps: int, count: int = 2048, width: int = 64) -> Iterator[Batch]:
    """Random rows and classes, drawn from the global generator inside the loop."""
    for _ in range(steps):
        yield torch.randn(count, width), torch.randint(16, (count,))


def images(steps: int, count: int = 16, side: int = 24) -> Iterator[Batch]:
    """Random images and classes, from numpy: memory that torch's allocator never saw."""
    source = np.random.default_rng(steps)
    for _ in range(steps):
        pixels = source.standard_normal((count, 3, side, side), dtype=np.float32)
        yield torch.from_numpy(pixels), torch.from_numpy(source.integers(10, size=count))


def train(
    model: Callable[[Tensor], Tensor], optimizer: Optimizer, batches: Iterator[Batch]
) -> list[Tensor]:
    """The loop that everybody writes; returns the loss of every step."""
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses
