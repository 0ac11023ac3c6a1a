"""DenseNet-121 (Huang et al. 2016): every layer reads all earlier outputs of its block."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from .workload import Size, Workload, classification_loss, image_sampler, sgd

BOTTLENECK = 4
DEPTHS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """Concatenate, then BN-ReLU-1x1 and BN-ReLU-3x3 to `growth` new channels."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        width = BOTTLENECK * growth
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, *features: Tensor) -> Tensor:
        """The concatenation is inside, so that checkpointing a layer does not keep it."""
        x = torch.cat(features, 1)
        x = self.conv1(self.relu(self.bn1(x)))
        out: Tensor = self.conv2(self.relu(self.bn2(x)))
        return out


class DenseBlock(nn.Module):
    """Layers whose outputs pile up: memory is quadratic in depth without recomputation."""

    def __init__(self, depth: int, in_channels: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DenseLayer(in_channels + index * growth, growth) for index in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Input and all outputs, concatenated."""
        features = [x]
        for layer in self.layers:
            features.append(layer(*features))
        return torch.cat(features, 1)


class Transition(nn.Sequential):
    """Halve channels and resolution between blocks."""

    def __init__(self, in_channels: int) -> None:
        super().__init__(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(in_channels, in_channels // 2, 1, bias=False),
            nn.AvgPool2d(2),
        )


class DenseNet(nn.Module):
    """Stem, four dense blocks with transitions between them, classifier; no dropout, as usual."""

    def __init__(self, growth: int, num_classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        for stage, depth in enumerate(DEPTHS):
            if stage > 0:
                stages.append(Transition(channels))
                channels //= 2
            stages.append(DenseBlock(depth, channels, growth))
            channels += depth * growth
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
        )
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        features: Tensor = self.head(self.stages(self.stem(images)))
        scores: Tensor = self.classifier(features.flatten(1))
        return scores


def densenet121(size: Size, batch_size: int | None = None) -> Workload:
    """DenseNet-121; the paper's batch is 70 images."""
    if size == "paper":
        side, growth, num_classes = 224, 32, 1000
        batch_size = batch_size or 70
    else:
        side, growth, num_classes = 64, 8, 10
        batch_size = batch_size or 16
    return Workload(
        name="densenet121",
        size=size,
        batch_size=batch_size,
        build=partial(DenseNet, growth, num_classes),
        sample=image_sampler(batch_size, side, side, num_classes),
        objective=classification_loss,
        optimize=sgd,
        block_types=(DenseLayer,),
        num_parameters=7_978_856 if size == "paper" else None,
        parameters_source="torchvision's published count",
    )
