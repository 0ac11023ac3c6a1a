"""Programs for a GPU, each run in a process of its own: a process has one allocator.

A public function of these modules is a program. One runs by itself with

    python -m tests.cuda.programs engine:values_are_evicted_and_come_back
"""

from __future__ import annotations

import torch

MIB = 2**20


def value(n: int = 0, device: str = "cuda", mib: int = 8) -> torch.Tensor:
    """Content that depends on `n`, made by two operators."""
    return torch.arange(mib * MIB // 4, dtype=torch.float32, device=device).add(n).sin()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bits, compared in main memory."""
    return torch.equal(a.cpu(), b.cpu())
