"""Single Path One-Shot (Guo et al. 2019): 20 choice blocks, one random path every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from .workload import Size, Workload, classification_loss, image_sampler, sgd

# Choices 0, 1, 2 are shuffle blocks with these kernels; choice 3 is the xception-like block.
SHUFFLE_KERNELS = (3, 5, 7)
NUM_CHOICES = len(SHUFFLE_KERNELS) + 1
STAGE_DEPTHS = (4, 4, 8, 4)
STEM_CHANNELS, STAGE_CHANNELS, HEAD_CHANNELS = 16, (64, 160, 320, 640), 1024


def _norm(channels: int) -> nn.Module:
    # The authors train the supernet without affine norms: statistics of shared weights mean little.
    return nn.BatchNorm2d(channels, affine=False)


def _pointwise(in_channels: int, out_channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        _norm(out_channels),
        nn.ReLU(inplace=True),
    ]


def _depthwise(channels: int, kernel: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False),
        _norm(channels),
    ]


def _shuffle(x: Tensor) -> tuple[Tensor, Tensor]:
    """Even and odd channels: ShuffleNet's channel shuffle and split in one copy."""
    batch, channels, height, width = x.shape
    pairs = x.reshape(batch, channels // 2, 2, height, width).permute(2, 0, 1, 3, 4)
    even, odd = pairs.contiguous().unbind(0)
    return even, odd


class Choice(nn.Module):
    """One candidate of a choice block. Stride 1 splits the channels; stride 2 projects them."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, choice: int) -> None:
        super().__init__()
        # With stride 1 half of the channels pass by untouched; the branch sees the other half.
        inputs = in_channels if stride == 2 else in_channels // 2
        middle = out_channels // 2
        kernel = 3
        layers: list[nn.Module]
        if choice < len(SHUFFLE_KERNELS):
            kernel = SHUFFLE_KERNELS[choice]
            layers = _pointwise(inputs, middle) + _depthwise(middle, kernel, stride)
        else:
            layers = _depthwise(inputs, kernel, stride) + _pointwise(inputs, middle)
            layers += _depthwise(middle, kernel, 1) + _pointwise(middle, middle)
            layers += _depthwise(middle, kernel, 1)
        layers += _pointwise(middle, out_channels - inputs)
        self.branch = nn.Sequential(*layers)
        self.shortcut: nn.Module | None = None
        if stride == 2:
            self.shortcut = nn.Sequential(
                *_depthwise(inputs, kernel, stride), *_pointwise(inputs, inputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Shortcut and branch, concatenated."""
        if self.shortcut is not None:
            return torch.cat((self.shortcut(x), self.branch(x)), 1)
        passed, x = _shuffle(x)
        return torch.cat((passed, self.branch(x)), 1)


class ChoiceBlock(nn.Module):
    """All candidates of one position; the path says which one runs."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.choices = nn.ModuleList(
            Choice(in_channels, out_channels, stride, choice) for choice in range(NUM_CHOICES)
        )

    def forward(self, x: Tensor, choice: int) -> Tensor:
        """The chosen candidate only; as an argument, so that a checkpoint replays the same one."""
        out: Tensor = self.choices[choice](x)
        return out


class Supernet(nn.Module):
    """Stem, 20 choice blocks, head. Every forward pass without a given path draws the next one.

    Paths come from a Python generator of its own, so they repeat from one fresh model to the next
    whatever torch's generators did. Parameters off the path get no gradient, so optimizer states
    appear over the first steps instead of all at once.
    """

    def __init__(self, divisor: int, num_classes: int, path_seed: int = 0) -> None:
        super().__init__()
        self.path_generator = random.Random(path_seed)
        channels = STEM_CHANNELS // divisor
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False),
            _norm(channels),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.ModuleList()
        for depth, full_channels in zip(STAGE_DEPTHS, STAGE_CHANNELS, strict=True):
            for index in range(depth):
                out_channels = full_channels // divisor
                self.blocks.append(ChoiceBlock(channels, out_channels, 1 if index else 2))
                channels = out_channels
        head_channels = HEAD_CHANNELS // divisor
        self.head = nn.Sequential(
            *_pointwise(channels, head_channels),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(head_channels, num_classes, bias=False),
        )

    def draw_path(self) -> list[int]:
        """The next uniform path: one choice per block."""
        return [self.path_generator.randrange(NUM_CHOICES) for _ in self.blocks]

    def forward(self, images: Tensor, path: Sequence[int] | None = None) -> Tensor:
        """Class scores along `path`, or along the next random one."""
        if path is None:
            path = self.draw_path()
        x: Tensor = self.stem(images)
        for block, choice in zip(self.blocks, path, strict=True):
            x = block(x, choice)
        scores: Tensor = self.head(x)
        return scores


def spos(size: Size, batch_size: int | None = None) -> Workload:
    """SPOS on 224x224 images; the paper's batch is 256."""
    if size == "paper":
        side, divisor, num_classes = 224, 1, 1000
        batch_size = batch_size or 256
    else:
        side, divisor, num_classes = 112, 4, 10
        batch_size = batch_size or 8
    return Workload(
        name="spos",
        size=size,
        batch_size=batch_size,
        build=partial(Supernet, divisor, num_classes),
        sample=image_sampler(batch_size, side, side, num_classes),
        objective=classification_loss,
        optimize=sgd,
        block_types=(ChoiceBlock,),
        num_parameters=8_388_176 if size == "paper" else None,
        parameters_source="derived, the sum of all candidates. The path that the authors published "
        "with 323M FLOPs and 3.5M parameters has 322.9M and 3.56M here, counted with the affine "
        "norms it is retrained with",
    )
