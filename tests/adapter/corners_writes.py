"""Views and writes: values whose storage has since been overwritten, in every way there is.

Each program makes values from one version of a storage, writes the storage, makes more, and reads
all of them at the end, oldest last. A replay that saw the wrong version shows in the outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from .outcome import Outcome, Registry, collect

CORNERS = Registry()

SIDE = 160  # a square of this side is 100 KiB


def value(side: int = SIDE) -> Tensor:
    """A recomputable square."""
    return torch.randn(side, side).tanh()


def root_in_the_arena(seed: int) -> Tensor:
    """Filled from numpy without an operator, so that nothing but a copy can bring it back."""
    return torch.tensor(np.random.default_rng(seed).standard_normal((SIDE, SIDE), dtype="f4"))


def root_outside_the_arena(seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((SIDE, SIDE), dtype="f4"))


def derived(x: Tensor) -> Tensor:
    """Needs the present version of x when it is replayed."""
    return torch.sin(x * 1.5) + x


def write_and_read(x: Tensor, writes: list[Callable[[], object]], **others: Tensor) -> Outcome:
    """A derived value of every version of x, all of them read again after the last write."""
    versions = [derived(x)]
    for write in writes:
        write()
        versions.append(derived(x))
    late = [version.mean(dim=0) for version in reversed(versions)]
    return collect([], x=x, versions=versions, late=late, **others)


@CORNERS
def writes_through_slices(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x = value()
    view = x[20:100]
    return write_and_read(
        x,
        [
            lambda: x[10:50].mul_(2.0),
            lambda: x[:, ::2].add_(1.0),
            lambda: view[:, -7:].neg_(),
            lambda: x[3].copy_(x[4]),
            lambda: x[::3, 1::4].zero_(),
            lambda: view.narrow(0, 5, 30).sub_(view.narrow(0, 40, 30)),
            lambda: x.select(1, 9).fill_(0.5),
        ],
        view=view,
    )


@CORNERS
def writes_through_transposes_and_diagonals(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x = value()
    cube = x.view(8, SIDE // 8, SIDE).permute(2, 0, 1)
    return write_and_read(
        x,
        [
            lambda: x.t().add_(torch.arange(SIDE).float()),
            lambda: cube[5:9].mul_(-1.0),
            lambda: x.diagonal(3).fill_(7.0),
            lambda: x.T[20:40].copy_(x[20:40]),
            lambda: x.view(-1).view(SIDE // 2, 2 * SIDE).t().clamp_(-0.5, 0.5),
            lambda: cube.movedim(0, -1).abs_(),
        ],
        cube=cube,
    )


@CORNERS
def writes_through_as_strided(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x = value()
    windows = x.as_strided((2 * SIDE - 1, SIDE), (SIDE // 2, 1))  # rows that overlap by half
    band = x.as_strided((SIDE - 2, 3), (SIDE + 1, 1), 0)
    return write_and_read(
        x,
        [
            lambda: band.mul_(3.0),
            lambda: windows[7].sigmoid_(),
            lambda: x.as_strided((50, 50), (SIDE, 3), 11).add_(windows[:50, :50]),
            lambda: windows[8].copy_(windows[20]),
            lambda: x.unfold(0, 4, 4)[:, :, 2].neg_(),
            lambda: x.as_strided((SIDE * SIDE // 5,), (5,), 4).zero_(),
        ],
        windows=windows,
        band=band,
    )


@CORNERS
def writes_beside_expanded_views(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x, big = value(), value()
    row, column = x[4].expand(SIDE, SIDE), x[:, 9:10].expand(SIDE, SIDE)
    return write_and_read(
        x,
        [
            lambda: x.add_(row),
            lambda: big.copy_(column),
            lambda: x.mul_(big),
            lambda: x[4].fill_(0.25),
            lambda: big.addcmul_(row, column),
            lambda: x.sub_(big.t()),
        ],
        big=big,
        row=row,
        column=column,
    )


@CORNERS
def writes_to_parts_of_one_storage(seed: int) -> Outcome:
    """chunk, unbind and split make many tensors of one storage; foreach writes several at once."""
    torch.manual_seed(seed)
    x = value()
    parts = x.chunk(5)
    return write_and_read(
        x,
        [
            lambda: [part.mul_(index) for index, part in enumerate(parts)],
            lambda: torch._foreach_add_(parts, 0.5),
            lambda: torch._foreach_mul_(parts[:2], parts[3:]),
            lambda: torch._foreach_lerp_(x.split(40, dim=1)[:2], x.split(40, dim=1)[2:], 0.3),
            lambda: [line.cumsum_(0) for line in x.unbind(0)[::16]],
            lambda: parts[1].copy_(parts[4]),
        ],
    )


@CORNERS
def writes_through_other_dtypes(seed: int) -> Outcome:
    torch.manual_seed(seed)
    x = torch.randn(SIDE, SIDE // 2, dtype=torch.complex64)
    real = torch.view_as_real(x)
    versions = []
    for write in (
        lambda: x.imag.mul_(2.0),
        lambda: real[..., 0].add_(1.0),
        lambda: x.conj().mul_(1j),
        lambda: x.view(torch.float32).clamp_(-1.0, 1.0),
        lambda: real.view(torch.int32).bitwise_and_(-4096),
        lambda: x.copy_(x.conj().imag),
    ):
        versions.append(torch.sin(x) * x.conj())
        write()
    late = [torch.view_as_real(version).mean(dim=0) for version in reversed(versions)]
    return collect([], x=torch.view_as_real(x), late=late)


@CORNERS
def overlapping_writes_interleaved_with_old_reads(seed: int) -> Outcome:
    """Two windows of one storage write over each other; what each saw before is read in between."""
    torch.manual_seed(seed)
    x = value()
    upper, lower = x[:100], x[60:]
    history = [derived(upper), derived(lower)]
    checks = []
    for step in range(6):
        upper.mul_(0.9).add_(history[-1].mean())
        history.append(derived(lower))
        lower.add_(history[step][:100] * 0.1)
        history.append(derived(upper))
        checks.append(history[step].sum(dim=0) + history[-1 - step].sum(dim=0))
    late = [old.mean(dim=0) for old in reversed(history)]
    return collect([], x=x, checks=checks, late=late)


@CORNERS
def random_writes_and_reads(seed: int) -> Outcome:
    """Two hundred random actions on a handful of storages, each written through random views."""
    torch.manual_seed(seed)
    chooser = random.Random(seed)
    side = 112
    pool = [value(side) for _ in range(10)]
    checks = []

    def window(x: Tensor) -> Tensor:
        row, column = chooser.randrange(40), chooser.randrange(40)
        view = x[row : row + 72, column : column + 72]
        return view.t() if chooser.random() < 0.5 else view

    for _ in range(200):
        x, y = chooser.choice(pool), chooser.choice(pool)
        action = chooser.randrange(8)
        if action == 0:
            pool[chooser.randrange(10)] = derived(x).tanh()
        elif action == 1:
            pool[chooser.randrange(10)] = (x @ y).tanh()
        elif action == 2:
            pool[chooser.randrange(10)] = x.clone()
        elif action == 3:
            window(x).mul_(0.5)
        elif action == 4:
            window(x).copy_(derived(window(y)).clamp(-2, 2))
        elif action == 5:
            x.add_(derived(y.t()), alpha=0.5).tanh_()
        elif action == 6:
            window(x).normal_()
        else:
            checks.append(window(x).sum(dim=0))
    return collect([], pool=pool, checks=checks)


# Roots


def writes_to_roots_that_records_need(seed: int, make_root: Callable[[int], Tensor]) -> Outcome:
    """The input is written while values that can only be recomputed from it are alive."""
    torch.manual_seed(seed)
    x = make_root(seed)
    held = [derived(x + float(number)) for number in range(6)]
    again = [derived(one) for one in held]
    return write_and_read(
        x,
        [
            lambda: x.mul_(2.0),
            lambda: x[20:60].zero_(),
            lambda: x.copy_(held[0]),
            lambda: x.t().sub_(held[3]),
        ],
        held=torch.stack([one.mean(dim=0) for one in reversed(again)]),
    )


CORNERS.add(
    "writes_to_roots_in_the_arena",
    partial(writes_to_roots_that_records_need, make_root=root_in_the_arena),
)
CORNERS.add(
    "writes_to_roots_outside_the_arena",
    partial(writes_to_roots_that_records_need, make_root=root_outside_the_arena),
)


@CORNERS
def activations_kept_over_optimizer_steps(seed: int) -> Outcome:
    """Features computed with weights that have since been updated keep their old content."""
    torch.manual_seed(seed)
    layers = nn.ModuleList(nn.Linear(SIDE, SIDE) for _ in range(3))
    optimizer = SGD(layers.parameters(), lr=0.1, momentum=0.9)
    losses, kept = [], []
    for _ in range(4):
        optimizer.zero_grad()
        x = value()
        for layer in layers:
            x = F.silu(layer(x))
            kept.append(x.detach())
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    late = [feature.mean(dim=0) for feature in reversed(kept)]
    return collect(losses, modules=[layers], optimizers=[optimizer], late=late)


# Writes that autograd follows


@CORNERS
def inplace_chain_under_autograd(seed: int) -> Outcome:
    torch.manual_seed(seed)
    weights = [nn.Parameter(torch.randn(SIDE, SIDE) / 12) for _ in range(4)]
    losses = []
    for _ in range(2):
        total = torch.zeros(SIDE, SIDE)
        x = value()
        for weight in weights:
            x = x @ weight
            x.sin_()
            x[:, :40] += x[:, 40:80]  # through a view: autograd rewrites the history of its base
            x.t()[5:9].mul_(2.0)
            x = F.relu_(x + 0.1)
            total += x
            total[7].copy_(x[8])
        loss = total.square().mean()
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None
    return collect(losses, weights=weights)
