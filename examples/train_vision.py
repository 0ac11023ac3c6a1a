"""Trains a residual network on made-up images. Knows nothing of coop.

python examples/train_vision.py
coop run --budget 11MiB examples/train_vision.py
coop run examples/train_vision.py --blocks 4 --width 64 --size 224 --batch 512   # for a GPU
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions, and what came in."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.short(x), inplace=True)


def make_model(blocks: int, width: int) -> nn.Module:
    """Three stages, each of half the size and twice the width."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)]
    for stage in range(3):
        outputs = width * 2**stage
        for block in range(blocks):
            first = stage > 0 and block == 0
            layers.append(Block(outputs // 2 if first else outputs, outputs, 2 if first else 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    for name, number in (("steps", 4), ("blocks", 3), ("width", 8), ("size", 32), ("batch", 16)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = make_model(args.blocks, args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(args.steps):
        images = torch.randn(args.batch, 3, args.size, args.size, device=device)
        classes = images.mean((1, 2, 3)).mul(1000).long().remainder(10)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item()}")


if __name__ == "__main__":
    main()
