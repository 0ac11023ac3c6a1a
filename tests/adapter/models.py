"""The networks that the programs train.

Each is small in parameters and, at the batch sizes used, several times larger in activations, and
almost every activation is well above the 10 KiB below which nothing is ever evicted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(width: int = 64, depth: int = 8) -> nn.Sequential:
    """Linear, layer norm, GELU, repeated: three saved activations a layer."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 16))


class SmallCNN(nn.Module):
    """Convolution, batch norm, in-place ReLU: the ReLU overwrites what batch norm made."""

    def __init__(self, channels: int = 16, depth: int = 6, *, dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index in range(depth):
            layers += [
                nn.Conv2d(channels if index else 3, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.dropout(self.features(images))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions around an in-place addition of the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        out = self.norm2(self.conv2(out))
        out += x
        return F.relu(out, inplace=True)


class ResidualNet(nn.Module):
    """A stem and a chain of residual blocks."""

    def __init__(self, channels: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(channels) for _ in range(depth)))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward, with dropout around and optionally inside attention."""

    def __init__(self, width: int, heads: int, attention_dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_dropout = attention_dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=True,
        )
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """A causal language model; its last block alone has dropout inside the attention.

    So both kernels run: the flash one, and the one that writes the whole attention matrix.
    """

    def __init__(self, vocabulary: int = 128, length: int = 48, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, 4, p) for p in (0.0, 0.0, 0.1))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class SequenceModel(nn.Module):
    """torch's own LSTM, in one or both directions, and a head over every time step."""

    def __init__(self, width: int = 32, layers: int = 3, *, bidirectional: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(width, width, layers, dropout=0.1, bidirectional=bidirectional)
        self.head = nn.Linear(width * (2 if bidirectional else 1), 16)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.rnn(x)[0])
        return logits


class UnrolledLSTM(nn.Module):
    """The same recurrence as a Python loop over cells: a long chain of small operators."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.head = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(x.shape[1:])
        outputs = []
        for step in x.unbind(0):
            hidden, cell = self.cell(step, (hidden, cell))
            outputs.append(hidden)
        logits: Tensor = self.head(torch.stack(outputs))
        return logits


class UNet(nn.Module):
    """Three levels down and up again; the first activation is needed by the last layer."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        one, two, four = channels, 2 * channels, 4 * channels
        self.down1 = self.block(3, one)
        self.down2 = self.block(one, two)
        self.bottom = self.block(two, four)
        self.up2 = nn.ConvTranspose2d(four, two, 2, stride=2)
        self.join2 = self.block(four, two)
        self.up1 = nn.Conv2d(two, one, 1)
        self.join1 = self.block(two, one)
        self.head = nn.Conv2d(one, 1, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
        )

    def forward(self, images: Tensor) -> Tensor:
        skip1 = self.down1(images)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.bottom(F.avg_pool2d(skip2, 2))
        x = self.join2(torch.cat([self.up2(x), skip2], dim=1))
        x = self.up1(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False))
        mask: Tensor = self.head(self.join1(torch.cat([x, skip1], dim=1)))
        return mask


@dataclass(frozen=True)
class Tree:
    """A binary tree; a leaf has no children and names a row of the input."""

    leaf: int = -1
    left: Tree | None = None
    right: Tree | None = None


def random_tree(leaves: list[int], chooser: random.Random) -> Tree:
    """A tree over `leaves` in order, split at random places."""
    if len(leaves) == 1:
        return Tree(leaf=leaves[0])
    split = chooser.randrange(1, len(leaves))
    return Tree(
        left=random_tree(leaves[:split], chooser), right=random_tree(leaves[split:], chooser)
    )


class TreeLSTM(nn.Module):
    """A binary TreeLSTM: the graph has the shape of the tree it is given."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 2 * width)
        self.compose = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, 16)

    def encode(self, tree: Tree, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if tree.left is None or tree.right is None:
            hidden, cell = self.leaf(inputs[tree.leaf]).chunk(2, dim=-1)
            return torch.tanh(hidden), cell
        hidden_left, cell_left = self.encode(tree.left, inputs)
        hidden_right, cell_right = self.encode(tree.right, inputs)
        gates = self.compose(torch.cat([hidden_left, hidden_right], dim=-1))
        write, keep_left, keep_right, show, new = gates.chunk(5, dim=-1)
        cell = torch.sigmoid(write) * torch.tanh(new)
        cell = cell + torch.sigmoid(keep_left) * cell_left + torch.sigmoid(keep_right) * cell_right
        return torch.sigmoid(show) * torch.tanh(cell), cell

    def forward(self, tree: Tree, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encode(tree, inputs)[0])
        return logits


class SuperNet(nn.Module):
    """Every layer is one of five choices, drawn anew for every step."""

    def __init__(self, width: int = 64, depth: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)),
                    nn.Sequential(nn.Linear(width, 2 * width), nn.GLU()),
                    nn.Sequential(nn.LayerNorm(width), nn.Tanh()),
                    nn.Sequential(nn.Linear(width, 16), nn.SiLU(), nn.Linear(16, width)),
                    nn.Identity(),
                ]
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 16)

    def forward(self, x: Tensor, path: list[int]) -> Tensor:
        for choices, choice in zip(self.layers, path, strict=False):
            assert isinstance(choices, nn.ModuleList)
            x = x + choices[choice](x)
        logits: Tensor = self.head(x)
        return logits


class MixtureOfExperts(nn.Module):
    """The two best experts a token: nonzero, index, index_add_ and scatter on every layer."""

    def __init__(self, width: int = 48, experts: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(experts)
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        for router, experts in zip(self.routers, self.experts, strict=True):
            assert isinstance(experts, nn.ModuleList)
            scores = router(x)
            best, chosen = scores.topk(2, dim=-1)
            gates = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(dim=-1))
            mixed = torch.zeros_like(x)
            for number, expert in enumerate(experts):
                rows = gates[:, number].nonzero().squeeze(-1)
                weights = gates[rows, number].unsqueeze(-1)
                mixed.index_add_(0, rows, expert(x[rows]) * weights)
            x = x + mixed
        logits: Tensor = self.head(x)
        return logits
