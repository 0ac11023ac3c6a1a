"""Random programs of compiled pieces, mixed with eager operators.

A piece is a small function that is compiled once for all programs. A program calls pieces on
values that it has made, views them, writes them in place, uses some twice and drops others; half of
the programs train two weights by it. `program(seed, backend)` leaves an `Outcome`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.adapter.outcome import Outcome, collect

ROWS, WIDTH = 96, 64  # 24 KiB a value: more than the small area takes
NUM_ACTIONS = 24

Piece = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def product(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (torch.tanh(x @ weight) + y,)


def norm(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return F.layer_norm(x, (WIDTH,)) * weight[0], F.gelu(y)


def dropout(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return F.dropout(x @ weight, 0.3), F.dropout(y, 0.5) + x


def noise(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return x + 0.1 * torch.randn_like(y), torch.rand(ROWS, WIDTH) * y


def views(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Of an input, of a result, and an input as it is."""
    z = torch.sin(x) * y
    return z, z.reshape(WIDTH, ROWS).t(), x.reshape(-1).view(ROWS, WIDTH), y


def writes(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """An input, where nobody needs it as it was."""
    x = x.clone() if weight.requires_grad else x
    x.mul_(0.5).add_(y)
    return x + 1, x.softmax(1)


def widening(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Half precision inside, and a temporary four times as large."""
    wide = torch.cat([x, y, x, y], 1).bfloat16()
    return (wide.view(ROWS, 4, WIDTH).sum(1).float() + x,)


PIECES: tuple[Piece, ...] = (product, norm, dropout, noise, views, writes, widening)


@functools.cache
def compiled(piece: Piece, backend: str) -> Piece:
    return torch.compile(piece, backend=backend)


def eager(draw: random.Random, x: Tensor, y: Tensor) -> Tensor:
    kind = draw.randrange(6)
    if kind == 0:
        return torch.cat([x[: ROWS // 2], y[ROWS // 2 :]])
    if kind == 1:
        return F.dropout(x, 0.2)
    if kind == 2:
        return x.reshape(WIDTH, ROWS).t().contiguous().view(ROWS, WIDTH)
    if kind == 3:
        z = x * 0.5
        z[1:].add_(1)  # through a view
        return z
    if kind == 4:
        return x[:]  # of the same memory
    return torch.sigmoid(x) - y


def program(seed: int, backend: str, pieces: Sequence[Piece] = PIECES) -> Outcome:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    trains = seed % 2 == 0
    weights = [(torch.randn(WIDTH, WIDTH) / 8).requires_grad_(trains) for _ in range(2)]
    losses, kept = [], []
    for _ in range(2):
        values = [torch.randn(ROWS, WIDTH) * 1 for _ in range(2)]
        for _ in range(NUM_ACTIONS):
            x, y = draw.choice(values), draw.choice(values)  # may be the same one
            if draw.random() < 0.6:
                piece = compiled(draw.choice(pieces), backend)
                values += piece(x, y, draw.choice(weights))
            elif draw.random() < 0.3 and not trains:
                x.mul_(0.9)
            else:
                values.append(eager(draw, x, y))
            while len(values) > 8:
                values.pop(draw.randrange(len(values)))
        loss = sum((v.square().mean() for v in values), torch.zeros(()))
        if loss.requires_grad:
            loss.backward()
            with torch.no_grad():
                for weight in weights:
                    if weight.grad is not None:
                        weight -= 0.1 * weight.grad
        losses.append(loss.detach())
        kept += [v.detach() for v in values[:2]]
    return collect(losses, kept=kept, weights=[w.detach() for w in weights])
