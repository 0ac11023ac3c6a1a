"""A GPT-3 style decoder (Brown et al. 2020): norm first, tied word scores, dropout as in GPT-2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .workload import Batch, Size, Workload, adamw

DROPOUT = 0.1


@dataclass(frozen=True)
class GptConfig:
    """Dimensions of a decoder; `context` is the length of its position table."""

    num_layers: int
    hidden: int
    num_heads: int
    context: int = 2048
    vocabulary: int = 50257


GPT2_SMALL = GptConfig(num_layers=12, hidden=768, num_heads=12, context=1024)
GPT2_XL = GptConfig(num_layers=48, hidden=1600, num_heads=25, context=1024)
GPT3_2_7B = GptConfig(num_layers=32, hidden=2560, num_heads=32)
# The largest of the authors' scripts: 32 layers of width 4096, sequence 1024, batch 2. Its weights,
# gradients and Adam states alone are 99 GiB in single precision, so size `paper` does not run it.
GPT3_6_7B = GptConfig(num_layers=32, hidden=4096, num_heads=32)
TINY = GptConfig(num_layers=32, hidden=64, num_heads=4, context=128, vocabulary=1000)


class DecoderLayer(nn.Module):
    """Causal attention and a feed-forward network, each normed first and added to the stream."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.num_heads = config.num_heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.project = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) in and out."""
        batch, sequence, hidden = x.shape
        qkv: Tensor = self.qkv(self.norm1(x))
        q, k, v = qkv.view(batch, sequence, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            q, k, v, dropout_p=DROPOUT if self.training else 0.0, is_causal=True
        )
        attended = attended.transpose(1, 2).reshape(batch, sequence, hidden)
        x = x + self.dropout(self.project(attended))
        activated = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        out: Tensor = x + self.dropout(self.down(activated))
        return out


class Gpt(nn.Module):
    """Word and position embeddings, decoder layers, final norm, scores over the vocabulary."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.context, config.hidden)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.Sequential(*(DecoderLayer(config) for _ in range(config.num_layers)))
        self.norm = nn.LayerNorm(config.hidden)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) to word scores; they share the matrix of the word embedding."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.word(tokens) + self.position(positions))
        return F.linear(self.norm(self.layers(x)), self.word.weight)


def _sample(batch_size: int, sequence: int, vocabulary: int, generator: torch.Generator) -> Batch:
    return (torch.randint(vocabulary, (batch_size, sequence + 1), generator=generator),)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    (tokens,) = batch
    scores: Tensor = model(tokens[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def gpt_workload(
    name: str,
    size: Size,
    config: GptConfig,
    sequence: int,
    batch_size: int,
    num_parameters: int | None,
) -> Workload:
    """A workload of any decoder size, such as `GPT3_6_7B`; `gpt3` is the one of the evaluation."""
    return Workload(
        name=name,
        size=size,
        batch_size=batch_size,
        build=partial(Gpt, config),
        sample=partial(_sample, batch_size, sequence, config.vocabulary),
        objective=_loss,
        optimize=adamw,
        block_types=(DecoderLayer,),
        num_parameters=num_parameters,
        parameters_source="derived: 12 h^2 + 13 h a layer, (vocabulary + context) h, 2 h for the "
        "last norm. It gives GPT-2's published 124,439,808 and 1,557,611,200, and for 2.7B the "
        "published 2,651,596,800 of OPT less the 15 words and 2 positions that OPT has more",
    )


def gpt3(size: Size, batch_size: int | None = None) -> Workload:
    """GPT-3 2.7B at sequence 1024, batch 2."""
    if size == "paper":
        return gpt_workload("gpt3", size, GPT3_2_7B, 1024, batch_size or 2, 2_651_553_280)
    return gpt_workload("gpt3", size, TINY, TINY.context, batch_size or 2, None)
