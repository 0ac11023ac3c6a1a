"""Trains one rank with torch.distributed and prints a checksum: the same with and without a budget.

python -m tests.cuda.programs.train_nccl --style ddp --budget 300MiB STORE
"""

from __future__ import annotations

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import coop

DDP_OPTIONS = {
    "ddp": {},
    "ddp-static": {"static_graph": True},
    "ddp-views": {"gradient_as_bucket_view": True},
    "ddp-unused": {"find_unused_parameters": True},
}
STYLES = (*DDP_OPTIONS, "fsdp2", "fsdp2-keep")
WIDTH = 512
ROWS = 4096


class Block(nn.Module):
    """A residual block of a norm, an activation and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's input plus what it makes of it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def train(style: str, backend: str) -> str:
    """Three steps; a checksum of losses and parameters."""
    device = "cuda" if backend == "nccl" else "cpu"
    torch.manual_seed(0)
    blocks = [Block().to(device) for _ in range(6)]
    model: nn.Module = nn.Sequential(*blocks)
    if style in DDP_OPTIONS:
        model = DistributedDataParallel(model, bucket_cap_mb=4, **DDP_OPTIONS[style])
    else:
        for block in blocks:
            fully_shard(block, reshard_after_forward=style == "fsdp2")
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    digest = hashlib.sha256()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, WIDTH, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        digest.update(loss.detach().cpu().numpy().tobytes())
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """Prints the checksum, and how often something was evicted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", choices=STYLES, required=True)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--budget")
    parser.add_argument("store")
    args = parser.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    device = "cuda" if args.backend == "nccl" else "cpu"
    dist.init_process_group(args.backend, store=dist.FileStore(args.store, 1), rank=0, world_size=1)
    try:
        if args.budget is None:
            print(train(args.style, args.backend))
        else:
            with coop.budget(args.budget, device=device) as session:
                print(train(args.style, args.backend))
            print(session.stats().num_evictions)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
