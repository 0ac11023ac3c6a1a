"""Corners of writes: such as name what they write, and such as the dispatcher hardly sees."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from .corners_writes import (
    SIDE,
    derived,
    value,
    write_and_read,
)
from .outcome import Outcome, Registry

CORNERS = Registry()


# Named writes


@CORNERS
def out_variants(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x, y = value(), value()
    empty = torch.empty(0)
    tops = (torch.empty(SIDE, 8), torch.empty(SIDE, 8, dtype=torch.int64))
    return write_and_read(
        x,
        [
            lambda: torch.add(x, y, out=x),
            lambda: torch.matmul(derived(x), y, out=x),
            lambda: torch.mul(x[:40], y[:40], out=x[60:100]),
            lambda: torch.cat([y[:20].t(), x.t()[:, 20:].clone()], dim=1, out=x.t()),
            lambda: torch.sub(x, y, out=empty),  # grows it from nothing
            lambda: torch.topk(x, 8, out=tops),
            lambda: torch.cumsum(empty, dim=1, out=x),
            lambda: torch.clamp(x, -1.0, 1.0, out=x),
        ],
        empty=empty,
        top=tops[0],
        where=tops[1],
    )


@CORNERS
def index_put_and_scatter(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x, source = value(), value()
    rows, columns = torch.randperm(SIDE)[:60], torch.randperm(SIDE)[:60]
    index = torch.stack([torch.randperm(SIDE) for _ in range(SIDE)])

    def assign(key: object, new: Tensor) -> None:
        x[key] = new  # type: ignore[index]

    return write_and_read(
        x,
        [
            lambda: x.index_put_((rows, columns), source[0, :60]),
            lambda: x.index_put_((rows,), source[:60], accumulate=True),
            lambda: assign(x > 0.7, torch.tensor(0.1)),
            lambda: assign((rows, slice(3, 9)), source[:60, :6]),
            lambda: x.scatter_(1, index, source),
            lambda: x.scatter_add_(0, index, source),
            lambda: x.index_add_(0, rows, source[:60], alpha=0.5),
            lambda: x.index_copy_(1, columns, source[:, :60]),
            lambda: x.index_fill_(0, rows[:10], -1.0),
            lambda: x.scatter_reduce_(1, index, source, reduce="amax"),
            lambda: x.put_(torch.arange(100), source.view(-1)[:100]),
        ],
    )


@CORNERS
def copies_and_masked_fills(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x, source = value(), value()
    half = source.bfloat16()
    numpy = np.random.default_rng(seed).standard_normal((SIDE, SIDE))
    mask = source > 0
    return write_and_read(
        x,
        [
            lambda: x.copy_(half),
            lambda: half.copy_(x * 3),
            lambda: x.t().copy_(half),
            lambda: x[:50].copy_(torch.from_numpy(numpy)[50:100]),
            lambda: x.masked_fill_(mask, 0.3),
            lambda: x.masked_scatter_(~mask, source),
            lambda: x[80:].masked_fill_(mask[80:], float("-inf")),
            lambda: x.nan_to_num_(neginf=-2.0),
            lambda: torch.where(mask, x, source, out=x),
        ],
        half=half,
    )


# What the dispatcher hardly sees


@CORNERS
def data_and_detached_writes(seed: int) -> Outcome:
    """Writes that autograd is not told of, and a parameter that is given another storage."""
    torch.manual_seed(seed)
    parameter = nn.Parameter(value())
    fresh = value()

    def give(new: Tensor) -> None:
        parameter.data = new

    return write_and_read(
        parameter.detach(),
        [
            lambda: parameter.data.mul_(2.0),
            lambda: parameter.detach()[:30].add_(1.0),
            lambda: give(fresh),
            lambda: fresh.neg_(),
            lambda: give(parameter.data[:, : SIDE // 2] + 1),
            lambda: parameter.data.zero_(),
        ],
        parameter=parameter.detach(),
        fresh=fresh,
    )


@CORNERS
def set_to_another_storage(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x, y, z = value(), value(), value()
    old = x.view(-1)
    return write_and_read(
        x,
        [
            lambda: x.set_(y),  # x now shares y's storage, and `old` still has the first
            lambda: y.mul_(2.0),
            lambda: old.add_(1.0),
            lambda: x.set_(z.untyped_storage(), SIDE, (SIDE - 1, SIDE), (SIDE, 1)),
            lambda: x.neg_(),
            lambda: x.set_(old.untyped_storage(), 0, (SIDE, SIDE), (1, SIDE)),
            lambda: x.exp_(),
        ],
        y=y,
        z=z,
        old=old,
    )


@CORNERS
def resized_tensors_and_storages(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x, y = value(), value()

    def grow() -> None:
        x.resize_(2 * SIDE, SIDE)
        x[SIDE:].copy_(y)

    def drop_and_refill() -> None:
        """What FSDP does to a parameter between its uses."""
        storage = y.untyped_storage()
        size_bytes = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size_bytes)
        y.copy_(x[:SIDE].t())

    return write_and_read(
        x,
        [
            lambda: x.resize_(SIDE // 2, SIDE),
            lambda: x.mul_(2.0),
            grow,
            lambda: x.resize_as_(y),
            drop_and_refill,
            lambda: x.add_(y),
        ],
        y=y,
    )
