"""Sequences: a switch transformer, what was bought, a long convolution, a dilated one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.workload import Batch, Workload

from .own import own_workload


class Attention(nn.Module):
    """Causal attention by torch's kernels."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) in and out."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return out


class Experts(nn.Module):
    """Each token goes to one expert, each expert takes at most its share (Fedus et al. 2021)."""

    def __init__(self, width: int, num_experts: int, capacity: float = 1.25) -> None:
        super().__init__()
        self.num_experts, self.capacity = num_experts, capacity
        self.router = nn.Linear(width, num_experts)
        self.up = nn.Parameter(torch.randn(num_experts, width, 4 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(num_experts, 4 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """What does not fit its expert is passed by."""
        tokens = x.flatten(0, 1)
        room = int(self.capacity * len(tokens) / self.num_experts)
        gate, expert = self.router(tokens).float().softmax(-1).max(-1)
        place = F.one_hot(expert, self.num_experts).cumsum(0).gather(1, expert[:, None])[:, 0] - 1
        # One slot behind all others takes those that do not fit.
        slot = torch.where(place < room, expert * room + place, self.num_experts * room)
        sorted_tokens = tokens.new_zeros(self.num_experts * room + 1, tokens.shape[1])
        sorted_tokens = sorted_tokens.index_copy(0, slot, tokens)
        inside = sorted_tokens[:-1].view(self.num_experts, room, -1)
        made = torch.bmm(F.gelu(torch.bmm(inside, self.up)), self.down).flatten(0, 1)
        made = torch.cat([made, made.new_zeros(1, made.shape[1])])
        return (made[slot] * gate[:, None].to(made.dtype)).view_as(x)


class SwitchLayer(nn.Module):
    """Attention, then experts or a feed-forward network."""

    def __init__(self, width: int, num_heads: int, num_experts: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.feed = Experts(width, num_experts) if num_experts else dense

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) in and out."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class Words(nn.Module):
    """Predicts the next of a sequence of words, or of items that were bought."""

    def __init__(self, num_words: int, length: int, width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.word = nn.Embedding(num_words, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        """The loss; scores share the matrix of the words."""
        x = self.layers(self.word(words[:, :-1]) + self.position)
        scores = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


def _words(
    name: str,
    batch: int,
    length: int,
    num_words: int,
    width: int,
    layer: Callable[[int], nn.Module],
    num_layers: int,
    block: type[nn.Module],
) -> Workload:
    def build() -> nn.Module:
        return Words(num_words, length, width, [layer(number) for number in range(num_layers)])

    def sample(generator: torch.Generator) -> Batch:
        return (torch.randint(num_words, (batch, length + 1), generator=generator),)

    return own_workload(name, batch, build, sample, block)


def switch() -> Workload:
    """Every second layer has 16 experts."""

    def layer(number: int) -> nn.Module:
        return SwitchLayer(768, 12, 16 if number % 2 else 0)

    return _words("switch", 16, 1024, 32000, 768, layer, 12, SwitchLayer)


def sasrec() -> Workload:
    """Self-attention over what was bought (Kang and McAuley 2018), with all items as scores."""

    def layer(_: int) -> nn.Module:
        return SwitchLayer(256, 4, 0)

    return _words("sasrec", 128, 200, 20000, 256, layer, 8, SwitchLayer)


class LongConvolution(nn.Module):
    """A convolution as long as the sequence by Fourier transforms, as S4 trains; then a gate."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.kernel = nn.Parameter(torch.randn(width, length) * 0.02)
        self.skip = nn.Parameter(torch.randn(width))
        self.mix = nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) in and out."""
        u = self.norm(x).transpose(1, 2).float()
        length = u.shape[-1]
        product = torch.fft.rfft(u, 2 * length) * torch.fft.rfft(self.kernel, 2 * length)
        y = torch.fft.irfft(product, 2 * length)[..., :length] + u * self.skip[:, None]
        y = self.dropout(F.gelu(y)).transpose(1, 2)
        return x + F.glu(self.mix(y), -1)


class SequenceClassifier(nn.Module):
    """Layers over a sequence of numbers, their mean, scores."""

    def __init__(self, channels: int, width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.encode = nn.Linear(channels, width)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, 35)

    def forward(self, sequence: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        return F.cross_entropy(self.head(self.layers(self.encode(sequence)).mean(1)), labels)


def s4() -> Workload:
    """Speech commands: one channel of 8,192 samples."""

    def build() -> nn.Module:
        return SequenceClassifier(1, 256, [LongConvolution(256, 8192) for _ in range(12)])

    def sample(generator: torch.Generator) -> Batch:
        sound = torch.randn(16, 8192, 1, generator=generator)
        return sound, torch.randint(35, (16,), generator=generator)

    return own_workload("s4", 16, build, sample, LongConvolution)


class DilatedLayer(nn.Module):
    """A gated convolution that sees every so many samples back."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.gates = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.residual, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.dilation = dilation

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The stream, and what the layer says itself."""
        a, b = self.gates(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.residual(y), self.skip(y)


class WaveNet(nn.Module):
    """Dilated causal convolutions over samples (van den Oord et al. 2016)."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.word = nn.Embedding(256, width)
        self.layers = nn.ModuleList(DilatedLayer(width, 2 ** (n % 10)) for n in range(num_layers))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU())
        self.scores = nn.Conv1d(width, 256, 1)

    def forward(self, samples: Tensor) -> Tensor:
        """The loss of predicting every next sample."""
        x = self.word(samples[:, :-1]).transpose(1, 2)
        told = torch.zeros_like(x)
        for layer in self.layers:
            x, said = layer(x)
            told = told + said
        return F.cross_entropy(self.scores(self.head(told)), samples[:, 1:])


def wavenet() -> Workload:
    def sample(generator: torch.Generator) -> Batch:
        return (torch.randint(256, (8, 16001), generator=generator),)

    return own_workload("wavenet", 8, partial(WaveNet, 128, 40), sample, DilatedLayer)


TUNED = {"switch": (switch,), "s4": (s4,)}
JUDGED = {"sasrec": (sasrec,), "wavenet": (wavenet,)}
