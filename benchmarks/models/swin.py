"""Swin-T (Liu et al. 2021): attention in windows that shift in every second block."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .workload import Size, Workload, adamw, classification_loss, image_sampler

PATCH = 4
WINDOW = 7
DEPTHS = (2, 2, 6, 2)
HEADS = (3, 6, 12, 24)
DROP_PATH = 0.2
# What the authors add to the score of two pixels that only the cyclic shift made neighbours.
FORBIDDEN = -100.0


def _into_windows(x: Tensor) -> Tensor:
    """(batch, side, side, channels) to (batch * windows, WINDOW * WINDOW, channels)."""
    batch, side, _, channels = x.shape
    count = side // WINDOW
    x = x.view(batch, count, WINDOW, count, WINDOW, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, channels)


def _from_windows(windows: Tensor, side: int) -> Tensor:
    """The inverse of `_into_windows`."""
    count = side // WINDOW
    x = windows.view(-1, count, count, WINDOW, WINDOW, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, side, side, windows.shape[-1])


def _relative_position_index() -> Tensor:
    """For each pair of pixels in a window, the row of the bias table for their offset."""
    axis = torch.arange(WINDOW)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    rows, columns = rows.flatten(), columns.flatten()
    row_offset = rows[:, None] - rows[None, :] + WINDOW - 1
    column_offset = columns[:, None] - columns[None, :] + WINDOW - 1
    return row_offset * (2 * WINDOW - 1) + column_offset


def _shift_mask(side: int, shift: int) -> Tensor:
    """(windows, pixels, pixels): FORBIDDEN between pixels that come from opposite edges."""
    position = torch.arange(side)
    band = (position >= side - WINDOW).long() + (position >= side - shift).long()
    region = (band[:, None] * 3 + band[None, :]).view(1, side, side, 1)
    windows = _into_windows(region).squeeze(-1)
    return (windows[:, :, None] != windows[:, None, :]) * FORBIDDEN


class WindowAttention(nn.Module):
    """Multi-head attention inside each window, with a learned bias per relative position."""

    relative_index: Tensor

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.project = nn.Linear(channels, channels)
        self.bias_table = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        self.register_buffer("relative_index", _relative_position_index(), persistent=False)

    def forward(self, windows: Tensor, mask: Tensor | None) -> Tensor:
        """Windows in, windows out; `mask` is one (pixels, pixels) matrix per window of an image."""
        count, pixels, channels = windows.shape
        qkv: Tensor = self.qkv(windows)
        q, k, v = qkv.view(count, pixels, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        # Not `table[index]`: on two threads its gradient is summed in an order that changes.
        bias = F.embedding(self.relative_index, self.bias_table).permute(2, 0, 1).unsqueeze(0)
        if mask is not None:
            bias = (bias + mask.unsqueeze(1)).repeat(count // mask.shape[0], 1, 1, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        projected: Tensor = self.project(out.transpose(1, 2).reshape(count, pixels, channels))
        return projected


class DropPath(nn.Module):
    """Stochastic depth: leave out the whole branch for some samples of the batch."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """`x` with the rows of dropped samples zero and the others scaled up."""
        if self.probability == 0.0 or not self.training:
            return x
        keep = 1.0 - self.probability
        kept = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep)
        return x * kept.div_(keep)


class SwinBlock(nn.Module):
    """Window attention and an MLP, each normed first and added to the stream."""

    shift_mask: Tensor | None

    def __init__(self, channels: int, num_heads: int, side: int, shift: int, drop: float) -> None:
        super().__init__()
        self.shift = shift
        self.norm1 = nn.LayerNorm(channels)
        self.attention = WindowAttention(channels, num_heads)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )
        self.drop_path = DropPath(drop)
        mask = _shift_mask(side, shift) if shift else None
        self.register_buffer("shift_mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, side, side, channels) in and out."""
        shifted: Tensor = self.norm1(x)
        if self.shift:
            shifted = shifted.roll((-self.shift, -self.shift), dims=(1, 2))
        windows = self.attention(_into_windows(shifted), self.shift_mask)
        attended = _from_windows(windows, x.shape[1])
        if self.shift:
            attended = attended.roll((self.shift, self.shift), dims=(1, 2))
        x = x + self.drop_path(attended)
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class PatchMerging(nn.Module):
    """Join 2x2 neighbours and project them: half the resolution, twice the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * channels)
        self.reduce = nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, side, side, channels) to (batch, side / 2, side / 2, 2 * channels)."""
        corners = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        out: Tensor = self.reduce(self.norm(torch.cat(corners, -1)))
        return out


class Swin(nn.Module):
    """Patch embedding, four stages, mean over the pixels, classifier.

    As in the original, the side of every stage must be a multiple of the window: 224 pixels give
    56, 28, 14, 7.
    """

    def __init__(self, channels: int, image_side: int, num_classes: int) -> None:
        super().__init__()
        side = image_side // PATCH
        if side % (WINDOW * 2 ** (len(DEPTHS) - 1)) or image_side % PATCH:
            raise ValueError(f"an image of {image_side} pixels does not divide into windows")
        self.embed = nn.Conv2d(3, channels, PATCH, stride=PATCH)
        self.embed_norm = nn.LayerNorm(channels)
        drops = torch.linspace(0.0, DROP_PATH, sum(DEPTHS), device="cpu").tolist()
        layers: list[nn.Module] = []
        for stage, (depth, num_heads) in enumerate(zip(DEPTHS, HEADS, strict=True)):
            if stage > 0:
                layers.append(PatchMerging(channels))
                channels, side = 2 * channels, side // 2
            for index in range(depth):
                # One window that covers the whole stage has nowhere to shift to.
                shift = WINDOW // 2 if index % 2 and side > WINDOW else 0
                layers.append(SwinBlock(channels, num_heads, side, shift, drops.pop(0)))
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(channels)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        patches: Tensor = self.embed_norm(self.embed(images).permute(0, 2, 3, 1))
        features: Tensor = self.norm(self.layers(patches))
        scores: Tensor = self.classifier(features.mean((1, 2)))
        return scores


def swin(size: Size, batch_size: int | None = None) -> Workload:
    """Swin-T; the paper's batch is 40 images."""
    channels, num_classes, default_batch_size = (96, 1000, 40) if size == "paper" else (24, 10, 2)
    batch_size = batch_size or default_batch_size
    return Workload(
        name="swin",
        size=size,
        batch_size=batch_size,
        build=partial(Swin, channels, 224, num_classes),
        sample=image_sampler(batch_size, 224, 224, num_classes),
        objective=classification_loss,
        optimize=adamw,
        block_types=(SwinBlock,),
        num_parameters=28_288_354 if size == "paper" else None,
        parameters_source="published for Swin-T by its authors, timm and torchvision",
    )
