"""Networks that predict noise: a transformer and a U-Net with attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.workload import Batch, Workload

from .own import own_workload


def _waves(times: Tensor, width: int) -> Tensor:
    """Sines and cosines of a time."""
    steps = torch.arange(width // 2, device=times.device) * (-math.log(10000) / (width // 2))
    angles = times[:, None] * steps.exp()[None]
    return torch.cat([angles.cos(), angles.sin()], 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class DiTBlock(nn.Module):
    """Attention and a feed-forward network; scales, shifts and gates come from the condition."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.condition = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(batch, tokens, width) in and out."""
        changes = self.condition(F.silu(condition))[:, None].chunk(6, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = changes
        y = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.project(_attend(*self.qkv(y).chunk(3, -1), self.num_heads))
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class DiT(nn.Module):
    """A transformer over patches of latents (Peebles and Xie 2023)."""

    def __init__(
        self, channels: int, side: int, patch: int, width: int, num_layers: int, num_heads: int
    ) -> None:
        super().__init__()
        self.patch, self.width = patch, width
        self.encode = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.zeros((side // patch) ** 2, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(DiTBlock(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.decode = nn.Linear(width, patch * patch * channels)

    def forward(self, latents: Tensor, times: Tensor, label: Tensor, noise: Tensor) -> Tensor:
        """The loss."""
        x = self.encode(latents).flatten(2).transpose(1, 2) + self.position
        condition = self.time(_waves(times, 256)) + label
        for block in self.blocks:
            x = block(x, condition)
        side = latents.shape[-1] // self.patch
        patches = self.decode(self.norm(x)).transpose(1, 2).unflatten(-1, (side, side))
        return F.mse_loss(F.pixel_shuffle(patches, self.patch).float(), noise)


class ResidualBlock(nn.Module):
    """Two convolutions, with the time added between them."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """An image in and out."""
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        out: Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(y)))
        return out


class SpatialTransformer(nn.Module):
    """Attention among the points of an image, then to words, then a gated network."""

    def __init__(self, width: int, words_width: int, num_heads: int = 8) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.GroupNorm(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(words_width, 2 * width)
        self.cross = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        """An image in and out."""
        x = self.enter(self.norm(image).flatten(2).transpose(1, 2))
        y = self.norms[0](x)
        x = x + self.project(_attend(*self.qkv(y).chunk(3, -1), self.num_heads))
        y = self.norms[1](x)
        x = x + self.cross(_attend(self.q(y), *self.kv(words).chunk(2, -1), self.num_heads))
        y, gate = self.up(self.norms[2](x)).chunk(2, -1)
        x = self.leave(x + self.down(y * F.gelu(gate)))
        return image + x.transpose(1, 2).unflatten(-1, image.shape[2:])


class Level(nn.Module):
    """A residual block, and attention where the level has it."""

    def __init__(self, inputs: int, outputs: int, time: int, words: int, attends: bool) -> None:
        super().__init__()
        self.residual = ResidualBlock(inputs, outputs, time)
        self.attention = SpatialTransformer(outputs, words) if attends else None

    def forward(self, x: Tensor, time: Tensor, words: Tensor) -> Tensor:
        """An image in and out."""
        x = self.residual(x, time)
        return x if self.attention is None else self.attention(x, words)


class DiffusionUNet(nn.Module):
    """Down and up again, two blocks a level, and every block's image kept for the way up."""

    def __init__(self, channels: int, widths: tuple[int, ...], words: int) -> None:
        super().__init__()
        time = 4 * widths[0]
        self.width = widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.shrink, self.grow = nn.ModuleList(), nn.ModuleList()
        kept, inside = [widths[0]], widths[0]
        for level, width in enumerate(widths):
            attends = level < len(widths) - 1
            for _ in range(2):
                self.down.append(Level(inside, width, time, words, attends))
                kept.append(inside := width)
            if attends:
                self.shrink.append(nn.Conv2d(width, width, 3, 2, 1))
                kept.append(width)
        self.between = Level(inside, inside, time, words, True)
        for level, width in reversed(list(enumerate(widths))):
            attends = level < len(widths) - 1
            for _ in range(3):
                self.up.append(Level(inside + kept.pop(), width, time, words, attends))
                inside = width
            if level:
                self.grow.append(nn.Conv2d(width, width, 3, padding=1))
        self.leave = nn.Sequential(nn.GroupNorm(32, inside), nn.SiLU())
        self.predict = nn.Conv2d(inside, channels, 3, padding=1)

    def forward(self, latents: Tensor, times: Tensor, words: Tensor, noise: Tensor) -> Tensor:
        """The loss."""
        time = self.time(_waves(times, self.width))
        x = self.enter(latents)
        kept = [x]
        for number, level in enumerate(self.down):
            kept.append(x := level(x, time, words))
            if number % 2 and number // 2 < len(self.shrink):
                kept.append(x := self.shrink[number // 2](x))
        x = self.between(x, time, words)
        for number, level in enumerate(self.up):
            x = level(torch.cat([x, kept.pop()], 1), time, words)
            if number % 3 == 2 and number // 3 < len(self.grow):
                x = self.grow[number // 3](F.interpolate(x, scale_factor=2.0))
        return F.mse_loss(self.predict(self.leave(x)).float(), noise)


def _normal(*shapes: tuple[int, ...]) -> Callable[[torch.Generator], Batch]:
    return lambda generator: tuple(torch.randn(shape, generator=generator) for shape in shapes)


def dit_large() -> Workload:
    """DiT-L/2 on latents of 32 x 32."""
    build = partial(DiT, 4, 32, 2, 1024, 24, 16)
    sample = _normal((64, 4, 32, 32), (64,), (64, 1024), (64, 4, 32, 32))
    return own_workload("dit_large", 64, build, sample, DiTBlock)


def diffusion_unet() -> Workload:
    """The U-Net of latent diffusion (Rombach et al. 2022) on latents of 64 x 64."""
    build = partial(DiffusionUNet, 4, (320, 640, 1280, 1280), 768)
    sample = _normal((24, 4, 64, 64), (24,), (24, 77, 768), (24, 4, 64, 64))
    return own_workload("diffusion_unet", 24, build, sample, ResidualBlock, SpatialTransformer)


TUNED = {"dit": (dit_large,)}
JUDGED = {"diffusion-unet": (diffusion_unet,)}
