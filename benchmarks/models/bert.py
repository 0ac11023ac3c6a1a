"""BERT Large (Devlin et al. 2018) in pre-training: masked words and next sentence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .workload import Batch, Size, Workload, adamw

DROPOUT = 0.1
NORM_EPS = 1e-12
MASKED_SHARE = 0.15
IGNORED = -100


@dataclass(frozen=True)
class BertConfig:
    """Dimensions of a BERT."""

    vocabulary: int
    hidden: int
    num_layers: int
    num_heads: int
    max_positions: int


LARGE = BertConfig(vocabulary=30522, hidden=1024, num_layers=24, num_heads=16, max_positions=512)
TINY = BertConfig(vocabulary=1000, hidden=64, num_layers=24, num_heads=4, max_positions=128)


class Embeddings(nn.Module):
    """Word, position and segment vectors, summed, normed, dropped."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.max_positions, config.hidden)
        self.segment = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=NORM_EPS)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        """(batch, sequence) of both to (batch, sequence, hidden)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.word(tokens) + self.segment(segments) + self.position(positions)
        out: Tensor = self.dropout(self.norm(x))
        return out


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with the norm *after* the residual sum."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.num_heads = config.num_heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.project = nn.Linear(hidden, hidden)
        self.norm1 = nn.LayerNorm(hidden, eps=NORM_EPS)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=NORM_EPS)
        self.dropout = nn.Dropout(DROPOUT)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) in and out."""
        attended = F.scaled_dot_product_attention(
            self._heads(self.query(x)),
            self._heads(self.key(x)),
            self._heads(self.value(x)),
            dropout_p=DROPOUT if self.training else 0.0,
        )
        x = self.norm1(x + self.dropout(self.project(attended.transpose(1, 2).flatten(2))))
        out: Tensor = self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return out


class Bert(nn.Module):
    """Embeddings, encoder and pooler: what `335,141,888 parameters` counts for BERT Large."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.Sequential(*(EncoderLayer(config) for _ in range(config.num_layers)))
        self.pooler = nn.Linear(config.hidden, config.hidden)

    def forward(self, tokens: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """The encoded sequence, and the pooled vector of its first token."""
        encoded: Tensor = self.layers(self.embeddings(tokens, segments))
        return encoded, torch.tanh(self.pooler(encoded[:, 0]))


class BertForPretraining(nn.Module):
    """BERT with both heads; the word scores share the matrix of the word embedding."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=NORM_EPS)
        self.word_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.next_sentence = nn.Linear(config.hidden, 2)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Word scores at every position, and next-sentence scores."""
        encoded, pooled = self.bert(tokens, segments)
        transformed = self.norm(F.gelu(self.transform(encoded)))
        words = F.linear(transformed, self.bert.embeddings.word.weight, self.word_bias)
        return words, self.next_sentence(pooled)


def _sample(batch_size: int, sequence: int, vocabulary: int, generator: torch.Generator) -> Batch:
    shape = (batch_size, sequence)
    tokens = torch.randint(vocabulary, shape, generator=generator)
    segments = (torch.arange(sequence) >= sequence // 2).long().expand(shape).contiguous()
    masked = torch.rand(shape, generator=generator) < MASKED_SHARE
    words = torch.where(masked, torch.randint(vocabulary, shape, generator=generator), IGNORED)
    follows = torch.randint(2, (batch_size,), generator=generator)
    return tokens, segments, words, follows


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens, segments, words, follows = batch
    word_scores, follow_scores = model(tokens, segments)
    word_loss = F.cross_entropy(word_scores.flatten(0, 1), words.flatten(), ignore_index=IGNORED)
    return word_loss + F.cross_entropy(follow_scores, follows)


def bert_large(size: Size, batch_size: int | None = None) -> Workload:
    """BERT Large at sequence 512; the paper's batch is 16 (4 in one of its authors' scripts)."""
    config, default_batch_size = (LARGE, 16) if size == "paper" else (TINY, 4)
    batch_size = batch_size or default_batch_size
    return Workload(
        name="bert_large",
        size=size,
        batch_size=batch_size,
        build=partial(BertForPretraining, config),
        sample=partial(_sample, batch_size, config.max_positions, config.vocabulary),
        objective=_loss,
        optimize=adamw,
        block_types=(EncoderLayer,),
        num_parameters=336_226_108 if size == "paper" else None,
        parameters_source="published for uncased BERT Large with both pre-training heads; "
        "embeddings, encoder and pooler alone (`model.bert`) have the published 335,141,888",
    )
