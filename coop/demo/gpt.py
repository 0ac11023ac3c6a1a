"""A small GPT that learns to write the source code of coop, byte by byte. Knows nothing of coop."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, HIDDEN, HEADS, CONTEXT, BATCH = 6, 128, 4, 128, 12
DROPOUT = 0.1


class Layer(nn.Module):
    """Causal attention and a feed-forward network, each normed first and added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.project = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) in and out."""
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, length, HIDDEN)
        x = x + self.dropout(self.project(attended))
        result: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return result


class Gpt(nn.Module):
    """Byte and position embeddings, layers, scores for the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(256, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN)
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
    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
        chunks = text[starts + torch.arange(CONTEXT + 1)].long().to(device)
        optimizer.zero_grad()
        scores = model(chunks[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), chunks[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield loss.item(), model
