"""U-Net (Ronneberger et al. 2015), padded and with batch norm: four levels, long skips."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import RMSprop

from .workload import Batch, Size, Workload

NUM_LEVELS = 4


class DoubleConv(nn.Sequential):
    """Two 3x3 convolutions, each with batch norm and in-place ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class Encode(nn.Module):
    """Halve the resolution (not before the first level), then convolve."""

    def __init__(self, in_channels: int, out_channels: int, pool: bool) -> None:
        super().__init__()
        self.pool: nn.Module = nn.MaxPool2d(2) if pool else nn.Identity()
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Features of the next level down."""
        out: Tensor = self.conv(self.pool(x))
        return out


class Decode(nn.Module):
    """Double the resolution, join the skip of that level, then convolve."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, 2, stride=2)
        self.conv = DoubleConv(in_channels, in_channels // 2)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Features of the next level up."""
        x = self.up(x)
        # Pooling rounds down: 460 rows are 57 at the fourth level, and 56 on the way back from 28.
        # Pad what is missing; the last decoder then has the input's size exactly.
        rows, columns = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
        x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        out: Tensor = self.conv(torch.cat((skip, x), 1))
        return out


class UNet(nn.Module):
    """Encoder 1, 2, 4, 8, 16 times `base_width`, decoder back, one score per pixel."""

    def __init__(self, base_width: int) -> None:
        super().__init__()
        widths = [base_width * 2**level for level in range(NUM_LEVELS + 1)]
        self.encoder = nn.ModuleList(
            Encode(before, after, pool=level > 0)
            for level, (before, after) in enumerate(zip([3, *widths], widths, strict=False))
        )
        self.decoder = nn.ModuleList(Decode(width) for width in reversed(widths[1:]))
        self.head = nn.Conv2d(base_width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Foreground scores, of the images' height and width."""
        levels = [images]
        for encode in self.encoder:
            levels.append(encode(levels[-1]))
        x = levels.pop()
        for decode in self.decoder:
            x = decode(x, levels.pop())
        scores: Tensor = self.head(x)
        return scores


def _sample(batch_size: int, height: int, width: int, generator: torch.Generator) -> Batch:
    images = torch.randn(batch_size, 3, height, width, generator=generator)
    masks = torch.rand(batch_size, 1, height, width, generator=generator).round()
    return images, masks


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    images, masks = batch
    return F.binary_cross_entropy_with_logits(model(images), masks)


def unet(size: Size, batch_size: int | None = None) -> Workload:
    """U-Net on RGB images with a binary mask; the paper's batch is 5 images of 460x608."""
    if size == "paper":
        height, width, base_width = 460, 608, 64
        batch_size = batch_size or 5
    else:
        height, width, base_width = 115, 152, 8
        batch_size = batch_size or 2
    return Workload(
        name="unet",
        size=size,
        batch_size=batch_size,
        build=partial(UNet, base_width),
        sample=partial(_sample, batch_size, height, width),
        objective=_loss,
        optimize=partial(RMSprop, lr=1e-5, momentum=0.9),
        block_types=(Encode, Decode),
        num_parameters=31_037_633 if size == "paper" else None,
        parameters_source="widely reported for this variant (RGB in, one class, batch norm, no "
        "bias in the 3x3 convolutions); the original (1 in, 2 classes, no norm) has 31,030,658",
    )
