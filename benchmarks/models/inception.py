"""Inception V3 (Szegedy et al. 2015) with the auxiliary classifier, 299x299."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .workload import Batch, Size, Workload, image_sampler, sgd

AUXILIARY_WEIGHT = 0.4
Pair = tuple[int, int]


class ConvBN(nn.Sequential):
    """Convolution without bias, batch norm, in-place ReLU: the only unit of the network."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int | Pair,
        stride: int = 1,
        padding: int | Pair = 0,
    ) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(out_channels, eps=1e-3),
            nn.ReLU(inplace=True),
        )


class Fork(nn.Module):
    """Branches over the same input, concatenated by channel."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """All branches' channels."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Mixed(Fork):
    """One inception block: a fork that is a unit of the network, not a part of a branch."""


def _pooled(in_channels: int, out_channels: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), ConvBN(in_channels, out_channels, 1))


def _chain(in_channels: int, *layers: tuple[int, int | Pair, int]) -> nn.Module:
    """Convolutions of (channels, kernel, stride) in a row; stride 1 keeps the resolution."""
    units = []
    for channels, kernel, stride in layers:
        padding: int | Pair = 0
        if stride == 1:
            padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        units.append(ConvBN(in_channels, channels, kernel, stride, padding))
        in_channels = channels
    return nn.Sequential(*units)


def _block_35(in_channels: int, pool_channels: int, w: Callable[[int], int]) -> nn.Module:
    return Mixed(
        _chain(in_channels, (w(64), 1, 1)),
        _chain(in_channels, (w(48), 1, 1), (w(64), 5, 1)),
        _chain(in_channels, (w(64), 1, 1), (w(96), 3, 1), (w(96), 3, 1)),
        _pooled(in_channels, w(pool_channels)),
    )


def _reduce_35_to_17(in_channels: int, w: Callable[[int], int]) -> nn.Module:
    return Mixed(
        _chain(in_channels, (w(384), 3, 2)),
        _chain(in_channels, (w(64), 1, 1), (w(96), 3, 1), (w(96), 3, 2)),
        nn.MaxPool2d(3, stride=2),
    )


def _block_17(in_channels: int, inner: int, w: Callable[[int], int]) -> nn.Module:
    c, out = w(inner), w(192)
    row, column = (1, 7), (7, 1)
    return Mixed(
        _chain(in_channels, (out, 1, 1)),
        _chain(in_channels, (c, 1, 1), (c, row, 1), (out, column, 1)),
        _chain(in_channels, (c, 1, 1), (c, column, 1), (c, row, 1), (c, column, 1), (out, row, 1)),
        _pooled(in_channels, out),
    )


def _reduce_17_to_8(in_channels: int, w: Callable[[int], int]) -> nn.Module:
    c = w(192)
    return Mixed(
        _chain(in_channels, (c, 1, 1), (w(320), 3, 2)),
        _chain(in_channels, (c, 1, 1), (c, (1, 7), 1), (c, (7, 1), 1), (c, 3, 2)),
        nn.MaxPool2d(3, stride=2),
    )


def _block_8(in_channels: int, w: Callable[[int], int]) -> nn.Module:
    def split() -> Fork:
        return Fork(_chain(w(384), (w(384), (1, 3), 1)), _chain(w(384), (w(384), (3, 1), 1)))

    return Mixed(
        _chain(in_channels, (w(320), 1, 1)),
        nn.Sequential(_chain(in_channels, (w(384), 1, 1)), split()),
        nn.Sequential(_chain(in_channels, (w(448), 1, 1), (w(384), 3, 1)), split()),
        _pooled(in_channels, w(192)),
    )


class InceptionV3(nn.Module):
    """The whole network; in training it returns the scores of both classifiers.

    `divisor` narrows every layer. The resolution stays 299 at every size, because the auxiliary
    head's 5x5 convolution needs the 17x17 stage.
    """

    def __init__(self, divisor: int, num_classes: int) -> None:
        super().__init__()

        def w(channels: int) -> int:
            return channels // divisor

        self.stem = nn.Sequential(
            ConvBN(3, w(32), 3, stride=2),
            ConvBN(w(32), w(32), 3),
            ConvBN(w(32), w(64), 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            ConvBN(w(64), w(80), 1),
            ConvBN(w(80), w(192), 3),
            nn.MaxPool2d(3, stride=2),
        )
        self.trunk = nn.Sequential(
            _block_35(w(192), 32, w),
            _block_35(w(256), 64, w),
            _block_35(w(288), 64, w),
            _reduce_35_to_17(w(288), w),
            _block_17(w(768), 128, w),
            _block_17(w(768), 160, w),
            _block_17(w(768), 160, w),
            _block_17(w(768), 192, w),
        )
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, stride=3),
            ConvBN(w(768), w(128), 1),
            ConvBN(w(128), w(768), 5),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(w(768), num_classes),
        )
        self.top = nn.Sequential(
            _reduce_17_to_8(w(768), w),
            _block_8(w(1280), w),
            _block_8(w(2048), w),
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(w(2048), num_classes),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores of the main and of the auxiliary classifier."""
        features = self.trunk(self.stem(images))
        return self.top(features), self.auxiliary(features)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    scores, auxiliary_scores = model(images)
    auxiliary_loss = F.cross_entropy(auxiliary_scores, labels)
    return F.cross_entropy(scores, labels) + AUXILIARY_WEIGHT * auxiliary_loss


def inception_v3(size: Size, batch_size: int | None = None) -> Workload:
    """Inception V3; the paper's batch is 96 images. One image cannot pass the auxiliary norm."""
    divisor, num_classes, default_batch_size = (1, 1000, 96) if size == "paper" else (8, 10, 2)
    batch_size = batch_size or default_batch_size
    return Workload(
        name="inception_v3",
        size=size,
        batch_size=batch_size,
        build=partial(InceptionV3, divisor, num_classes),
        sample=image_sampler(batch_size, 299, 299, num_classes),
        objective=_loss,
        optimize=sgd,
        block_types=(Mixed,),
        num_parameters=27_161_264 if size == "paper" else None,
        parameters_source="torchvision's published count, auxiliary head included",
    )
