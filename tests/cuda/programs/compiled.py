"""Compiled blocks: graphs of Triton kernels are evicted and replayed as a whole."""

from __future__ import annotations

import hashlib

import torch

import coop


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
