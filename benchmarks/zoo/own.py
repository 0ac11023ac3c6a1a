"""What networks of our own have in common: a loss of their own, in bf16 where torch does so."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.models.workload import Batch, Workload, adamw


def own_workload(
    name: str,
    batch_size: int,
    build: Callable[[], nn.Module],
    sample: Callable[[torch.Generator], Batch],
    *blocks: type[nn.Module],
) -> Workload:
    """A network of our own: `model(*batch)` is its loss."""
    return Workload(
        name=name,
        size="paper",
        batch_size=batch_size,
        build=build,
        sample=sample,
        objective=_loss,
        optimize=adamw,
        block_types=blocks,
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        loss: Tensor = model(*batch)
    return loss
