"""Trains a U-Net to take noise out of made-up images (DDPM). Knows nothing of coop.

python examples/train_diffusion.py
coop run --budget 8MiB examples/train_diffusion.py
coop run examples/train_diffusion.py --width 128 --size 256 --batch 16   # for a GPU
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_TIMES = 1000


class Block(nn.Module):
    """Two convolutions that know how much noise there is."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.time = nn.Linear(time, outputs)
        self.short = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """One block."""
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.short(x)


class UNet(nn.Module):
    """Down and up again, with what was on the way down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.times = nn.Embedding(NUM_TIMES, width)
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        sizes = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(Block(size, 2 * size, width) for size in sizes)
        self.up = nn.ModuleList(Block(4 * size, size, width) for size in reversed(sizes))
        self.last = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """The noise that it sees."""
        embedded = self.times(time)
        x = self.first(x)
        seen = []
        for block in self.down:
            x = block(x, embedded)
            seen.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, seen.pop()], 1), embedded)
        return self.last(x)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    for name, number in (("steps", 3), ("width", 8), ("size", 32), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = UNet(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = torch.linspace(1 - 1e-4, 1 - 0.02, NUM_TIMES, device=device).cumprod(0)
    for step in range(args.steps):
        images = torch.rand(args.batch, 3, args.size, args.size, device=device) * 2 - 1
        noise, time = (
            torch.randn_like(images),
            torch.randint(NUM_TIMES, (args.batch,), device=device),
        )
        share = kept[time][:, None, None, None]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            seen = model(share.sqrt() * images + (1 - share).sqrt() * noise, time)
        loss = F.mse_loss(seen.float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item()}")


if __name__ == "__main__":
    main()
