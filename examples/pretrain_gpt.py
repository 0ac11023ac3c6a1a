"""Pre-trains a GPT on the text of a file, in the way of nanoGPT. Knows nothing of coop.

    python examples/pretrain_gpt.py                              # plain
    coop run --budget 20MiB examples/pretrain_gpt.py               # the same, in less memory
    coop run examples/pretrain_gpt.py --layers 24 --width 1024 --heads 16 --batch 32 --length 1024

Toy size by default, for a CPU; the last line is GPT-2 medium, for a GPU.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention, then a small network, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        hidden = self.tokens(x) + self.places.weight[: x.shape[1]]
        logits = self.head(self.norm(self.blocks(hidden)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, default=Path(__file__), help="what to learn")
    for name, number in (("steps", 6), ("layers", 6), ("width", 96), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    text = args.text.read_text()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    data = data.repeat(math.ceil((args.length + 2) / len(data)))
    model = GPT(len(letters), args.length, args.layers, args.width, args.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")
    for step in range(args.steps):
        starts = torch.randint(len(data) - args.length - 1, (args.batch,))
        rows = torch.stack([data[i : i + args.length + 1] for i in starts.tolist()]).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item()}")


if __name__ == "__main__":
    main()
