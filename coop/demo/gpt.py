"""A small GPT that learns to write the source code of coop, byte by byte. Knows nothing of coop."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DROPOUT = 0.1


@dataclass(frozen=True)
class Size:
    """How large the model is, and its batch."""

    layers: int
    hidden: int
    heads: int
    context: int
    batch: int


SIZES = {
    # Some 100 MiB, and half a second a step on two cores.
    "cpu": Size(layers=6, hidden=128, heads=4, context=128, batch=12),
    # Some GiB: the workspaces of cuBLAS alone take more than the whole of the small one.
    "cuda": Size(layers=8, hidden=768, heads=12, context=512, batch=16),
}


class Layer(nn.Module):
    """Causal attention and a feed-forward network, each normed first and added to the stream."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.project = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) in and out."""
        batch, length, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, length, hidden)
        x = x + self.dropout(self.project(attended))
        result: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return result


class Gpt(nn.Module):
    """Byte and position embeddings, layers, scores for the next byte."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.hidden
        self.byte, self.position = nn.Embedding(256, hidden), nn.Embedding(size.context, hidden)
        self.layers = nn.Sequential(*(Layer(hidden, size.heads) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(hidden)
        nn.init.normal_(self.byte.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, sequence) bytes to (batch, sequence, 256) scores."""
        positions = torch.arange(text.shape[1], device=text.device)
        x = self.layers(self.byte(text) + self.position(positions))
        return F.linear(self.norm(x), self.byte.weight)


def train(num_steps: int, device: str) -> Iterator[tuple[float, nn.Module]]:
    """Trains from a fixed seed; yields the loss of every step, and the model."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, sources))), dtype=torch.uint8)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    size = SIZES[device]
    model = Gpt(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        starts = torch.randint(len(text) - size.context - 1, (size.batch, 1), generator=generator)
        chunks = text[starts + torch.arange(size.context + 1)].long().to(device)
        optimizer.zero_grad()
        scores = model(chunks[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), chunks[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield loss.item(), model
