"""ResNet-50 and ResNet-152 (He et al. 2015), with the stride on the 3x3 convolution ("v1.5")."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from .workload import Size, Workload, classification_loss, image_sampler, sgd

EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, and a shortcut that is projected where the shape changes."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * EXPANSION
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Residual block; the sum and its activation are in place, as usual."""
        out: Tensor = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        activated: Tensor = self.relu(out)
        return activated


class ResNet(nn.Module):
    """Stem, four stages of bottlenecks, global average pooling, classifier."""

    def __init__(self, depths: tuple[int, ...], base_width: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, base_width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(base_width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels = base_width
        for stage, depth in enumerate(depths):
            width = base_width * 2**stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        features: Tensor = self.pool(self.blocks(self.stem(images)))
        scores: Tensor = self.classifier(features.flatten(1))
        return scores


def _resnet(
    name: str,
    depths: tuple[int, ...],
    paper_batch_size: int,
    tiny_batch_size: int,
    num_parameters: int,
    size: Size,
    batch_size: int | None,
) -> Workload:
    if size == "paper":
        side, base_width, num_classes = 224, 64, 1000
        batch_size = batch_size or paper_batch_size
    else:
        side, base_width, num_classes = 96, 8, 10
        batch_size = batch_size or tiny_batch_size
    return Workload(
        name=name,
        size=size,
        batch_size=batch_size,
        build=partial(ResNet, depths, base_width, num_classes),
        sample=image_sampler(batch_size, side, side, num_classes),
        objective=classification_loss,
        optimize=sgd,
        block_types=(Bottleneck,),
        num_parameters=num_parameters if size == "paper" else None,
        parameters_source="torchvision's published count",
    )


def resnet50(size: Size, batch_size: int | None = None) -> Workload:
    """ResNet-50; the paper's batch is 115 images."""
    return _resnet("resnet50", (3, 4, 6, 3), 115, 16, 25_557_032, size, batch_size)


def resnet152(size: Size, batch_size: int | None = None) -> Workload:
    """ResNet-152; the paper's batch is 55 images."""
    return _resnet("resnet152", (3, 8, 36, 3), 55, 16, 60_192_808, size, batch_size)
