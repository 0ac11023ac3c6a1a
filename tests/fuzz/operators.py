"""Tables of torch's operators for random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Operator = Callable[..., Any]

UNARY: list[Operator] = [
    torch.sin,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.neg,
    torch.abs,
    torch.clone,
    Tensor.contiguous,
    lambda x: x * 0.5,
    lambda x: x.clamp(-1, 1),
    lambda x: x.cumsum(0),
    lambda x: x.float().softmax(-1),
    lambda x: F.gelu(x.float()),
    lambda x: x.flip(0),
    lambda x: x.roll(3),
    lambda x: torch.where(x > 0, x, 0.1),
    lambda x: F.pad(x, (1, 2)),
    lambda x: x.repeat_interleave(2, 0)[: len(x)],
    lambda x: x[torch.arange(0, len(x), 2)],
    lambda x: torch.zeros_like(x),
    lambda x: x.new_full((8, 8), 3),
]

SEVERAL: list[Operator] = [
    lambda x: list(x.sort(-1)),
    lambda x: list(x.topk(1, -1)),
    lambda x: list(torch.std_mean(x.float(), -1)),
    lambda x: [x.unique()],
    lambda x: [x.nonzero()],
    lambda x: list(torch.split_copy(x, 2)) if x.dim() else [x],
    lambda x: list(torch.frexp(x.float())),
    lambda x: list(x.cummax(0)),
    lambda x: list(torch.native_layer_norm(x.float(), x.shape[-1:], None, None, 1e-5)),
    lambda x: list(torch.aminmax(x.float())),
]

REDUCTIONS: list[Operator] = [
    torch.sum,
    lambda x: x.float().mean(0),
    lambda x: x.amax(-1),
    lambda x: x.float().logsumexp(-1),
    lambda x: x.float().norm(),
    lambda x: x.argmax(-1),
    lambda x: x.float().var(0),
]

CASTS: list[Operator] = [
    Tensor.double,
    Tensor.float,
    Tensor.bfloat16,
    Tensor.long,
    lambda x: x > 0,
    lambda x: torch.complex(x.float(), x.float()).conj(),
]

BINARY: list[Operator] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.atan2,
    torch.eq,
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: torch.cat([x, y]),
    lambda x, y: torch.stack([x, y]),
    lambda x, y: torch.addcmul(x, x, y, value=0.5),
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: F.mse_loss(x.float(), y.float()),
    lambda x, y: torch.dist(x.float(), y.float()),
]


def _batch_norm(x: Tensor, weight: Tensor) -> list[Tensor]:
    mean, var = torch.zeros(16), torch.ones(16)
    result = F.batch_norm(x, mean, var, weight[0], None, training=True)
    return [result, mean, var]


LAYERS: list[Operator] = [
    F.linear,
    _batch_norm,
    lambda x, w: F.layer_norm(x, (16,), w[0]),
    lambda x, w: F.conv1d(x.view(1, 1, -1), w.reshape(-1)[:16].view(4, 1, 4)),
    lambda x, w: F.max_pool1d(x.view(1, 1, -1), 2, return_indices=True),
    lambda x, w: F.embedding(torch.arange(8) % len(w), w),
    lambda x, w: F.scaled_dot_product_attention(
        x.view(1, 1, -1, 16), w.view(1, 1, -1, 16), w.view(1, 1, -1, 16)
    ),
    lambda x, w: F.cross_entropy(x, torch.arange(len(x)) % 16),
    lambda x, w: F.group_norm(x.view(1, 16, -1), 4),
    lambda x, w: torch.einsum("ij,kj->ik", x, w),
    lambda x, w: F.dropout(x, 0.5) @ w.t(),
]


def _part(x: Tensor, b: int, c: int) -> Tensor:
    begin, end = sorted((b % len(x), c % len(x) + 1))
    return x[begin:end] if begin < end else x


def _strided(x: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Overlapping elements, all of them its own: the rest of the storage may be anything."""
    return x.view(-1).as_strided(size, stride) if x.numel() >= 16 else x.view(-1)


VIEWS: list[Operator] = [
    _part,
    lambda x, b, c: x[..., ::2],
    lambda x, b, c: x[b % len(x)],
    lambda x, b, c: x.view(-1),
    lambda x, b, c: x.t() if x.dim() <= 2 else x.transpose(0, 1),
    lambda x, b, c: x.unsqueeze(b % (x.dim() + 1)),
    lambda x, b, c: x.squeeze(),
    lambda x, b, c: x.expand(2, *x.shape),
    lambda x, b, c: x.detach(),
    lambda x, b, c: x.diagonal(),
    lambda x, b, c: _strided(x, (4, 4), (3, 1)),
    lambda x, b, c: _strided(x, (2, x.numel() // 2), (1, 1)),
    lambda x, b, c: list(x.chunk(3)),
    lambda x, b, c: list(x.unbind(0))[:3],
    lambda x, b, c: x.detach().view(torch.uint8 if b % 2 else torch.int16),
    lambda x, b, c: x.narrow(-1, 0, max(1, x.shape[-1] // 2)),
    lambda x, b, c: x.movedim(0, -1),
    lambda x, b, c: x.unfold(0, 2, 1),
    lambda x, b, c: torch.view_as_real(x).select(-1, 0) if x.is_complex() else x.view_as(x),
    lambda x, b, c: x.conj() if x.is_complex() else x.view(x.shape),
]

INPLACE: list[Operator] = [
    Tensor.sin_,
    Tensor.relu_,
    Tensor.neg_,
    Tensor.zero_,
    lambda x: x.mul_(0.5),
    lambda x: x.add_(1),
    lambda x: x.fill_(0.25),
    lambda x: x.clamp_(-2, 2),
    lambda x: x.cumsum_(0),
    lambda x: x.tril_(),
    lambda x: x.copy_(x.flip(0)),
    lambda x: x.t().add_(1) if x.dim() == 2 else x.add_(2),
    lambda x: F.relu(x, inplace=True),
    lambda x: x.index_fill_(0, torch.arange(0, len(x), 2), 1),
    lambda x: torch._foreach_neg_([x]),
]

INPLACE_BINARY: list[Operator] = [
    Tensor.add_,
    Tensor.sub_,
    Tensor.mul_,
    Tensor.copy_,
    lambda x, y: x.addcmul_(y, y, value=0.1),
    lambda x, y: x.lerp_(y, 0.5),
    lambda x, y: x.masked_fill_(y > 0, 0.5),
    lambda x, y: x.copy_(y.bool()),
    lambda x, y: x.addmm_(y, y.t()[:, : y.shape[0]]),
    lambda x, y: x.masked_scatter_(y > 0, y),
    lambda x, y: x.atan2_(y),
]

RANDOM: list[Operator] = [
    lambda x, g: F.dropout(x.float(), 0.4),
    lambda x, g: torch.rand_like(x.float()),
    lambda x, g: torch.bernoulli(x.float().sigmoid().nan_to_num(0.5), generator=g),
    lambda x, g: torch.normal(x.float().nan_to_num(0), 1.0, generator=g),
    lambda x, g: torch.randperm(256, generator=g),
    lambda x, g: torch.multinomial(torch.ones(64), 32),
    lambda x, g: torch.randint(0, 9, (16, 16)),
    lambda x, g: F.rrelu(x.float(), training=True),
    lambda x, g: torch.poisson(torch.ones(16, 16)),
    lambda x, g: F.alpha_dropout(x.float(), 0.3, training=True),
    lambda x, g: F.gumbel_softmax(x.float(), dim=-1),
]

RANDOM_INPLACE: list[Operator] = [
    lambda x, g: x.normal_(),
    lambda x, g: x.uniform_(-1, 1, generator=g),
    lambda x, g: x.bernoulli_(0.5),
    lambda x, g: x.random_(0, 10),
    lambda x, g: x.exponential_(generator=g),
    lambda x, g: F.dropout(x, 0.2, inplace=True),
]
