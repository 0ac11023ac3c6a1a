"""What happens around a training loop: worker processes, other threads, and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from . import models
from .outcome import Outcome, Registry, collect

CORNERS = Registry()


# Data


class DrawnRows(Dataset[tuple[Tensor, int]]):
    """Rows that a worker draws when it is asked for them."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), index % 16


def train(model: nn.Module, optimizer: Optimizer, batches: Iterable[Any]) -> list[Tensor]:
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@CORNERS
def data_loader_with_workers(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=4)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader = DataLoader(DrawnRows(), batch_size=512, shuffle=True, num_workers=2)
    losses = train(model, optimizer, loader)
    return collect(losses, modules=[model])


@CORNERS
def data_loader_with_workers_over_tensors(seed: int) -> Outcome:
    """The data set is a tensor made under the budget, which the workers inherit by fork."""
    torch.manual_seed(seed)
    model = models.mlp(depth=4)
    optimizer = SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(1024, 64).tanh(), torch.randint(16, (1024,)))
    losses = train(model, optimizer, DataLoader(data, batch_size=512, shuffle=True, num_workers=1))
    return collect(losses, modules=[model])


@CORNERS
def data_loader_in_this_process(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=4)
    optimizer = SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(1024, 64).tanh(), torch.randint(16, (1024,)))
    losses = train(model, optimizer, DataLoader(data, batch_size=512, shuffle=True))
    return collect(losses, modules=[model])


# Threads


@CORNERS
def a_second_thread_computing_meanwhile(seed: int) -> Outcome:
    """Both threads train, and neither starts a step before the other has started the same one."""
    torch.manual_seed(seed)
    steps = 4
    meet = threading.Barrier(2, timeout=600.0)
    generator = torch.Generator().manual_seed(seed)
    other_losses: list[Tensor] = []
    errors: list[BaseException] = []

    def other() -> None:
        try:
            compute()
        except BaseException as error:
            errors.append(error)
            meet.abort()

    def compute() -> None:
        weights = [torch.randn(64, 64, generator=generator) / 8 for _ in range(4)]
        for _ in range(steps):
            try:
                meet.wait()
            except threading.BrokenBarrierError:
                return
            x = torch.randn(512, 64, generator=generator)
            for weight in weights:
                x = torch.tanh(x @ weight.requires_grad_())
            loss = x.square().mean()
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.detach().sub_(gradient)
            other_losses.append(loss.detach())

    thread = threading.Thread(target=other)
    model = models.mlp(depth=5)
    optimizer = SGD(model.parameters(), lr=0.1)
    thread.start()
    losses = []
    try:
        for _ in range(steps):
            meet.wait()
            losses += train(model, optimizer, [(torch.randn(512, 64), torch.randint(16, (512,)))])
    except threading.BrokenBarrierError:
        pass  # the other has failed
    except BaseException:
        meet.abort()  # or the other would wait for a step that never comes
        raise
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return collect(losses, modules=[model], other_losses=other_losses)


# Errors within a step


class Stop(Exception):
    """Raised by the programs below."""


def interrupted(seed: int, error: BaseException, *, in_backward: bool) -> Outcome:
    """The second of four steps is broken off; training goes on as if it were not."""
    torch.manual_seed(seed)
    model = models.mlp(depth=6)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    armed = False

    def maybe_raise(*_: object) -> None:
        if armed:
            raise error

    middle = model[9]
    assert isinstance(middle, nn.Linear)
    if in_backward:
        middle.weight.register_hook(maybe_raise)
    else:
        middle.register_forward_hook(maybe_raise)
    losses: list[Tensor] = []
    caught: list[BaseException] = []
    for step in range(4):
        armed = step == 1
        try:
            losses += train(model, optimizer, [(torch.randn(512, 64), torch.randint(16, (512,)))])
        except type(error) as raised:
            caught.append(raised.with_traceback(None))
    assert caught == [error]
    assert len(losses) == 3
    return collect(losses, modules=[model], optimizers=[optimizer])


@CORNERS
def exception_in_forward(seed: int) -> Outcome:
    return interrupted(seed, Stop(), in_backward=False)


@CORNERS
def exception_in_backward(seed: int) -> Outcome:
    return interrupted(seed, Stop(), in_backward=True)


@CORNERS
def keyboard_interrupt_in_forward(seed: int) -> Outcome:
    return interrupted(seed, KeyboardInterrupt(), in_backward=False)


@CORNERS
def keyboard_interrupt_in_backward(seed: int) -> Outcome:
    return interrupted(seed, KeyboardInterrupt(), in_backward=True)


class RaisesInBackward(Function):
    """A custom function that gives up half way, after it has allocated something."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if bool((dy * x).isnan().any()):
            raise Stop
        return dy


@CORNERS
def exception_in_a_custom_backward(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    losses, stopped = [], 0
    for step in range(3):
        model.zero_grad()
        hidden = RaisesInBackward.apply(model[:9](torch.randn(512, 64)))
        loss = model[9:](hidden * (float("nan") if step == 1 else 1.0)).square().mean()
        try:
            loss.backward()
        except Stop:
            stopped += 1
        losses.append(loss.detach())
        del hidden, loss
    assert stopped == 1
    return collect(losses, modules=[model])


@CORNERS
def operators_that_raise(seed: int) -> Outcome:
    """They fail inside the kernel, with inputs locked and outputs already allocated."""
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses, raised = [], 0
    for _ in range(3):
        x = torch.randn(512, 64)
        optimizer.zero_grad()
        hidden = model[:9](x)
        for fail in (
            lambda h: torch.linalg.cholesky(-h.t() @ h),
            lambda h: h[torch.tensor([0, 10_000])],
            lambda h: h @ h,
            lambda h: h.view(7, -1),
            lambda h: F.nll_loss(h, torch.full((512,), 64)),
            lambda h: torch.multinomial(h.detach() * 0 - 1, 4),
        ):
            try:
                fail(hidden)
            except (RuntimeError, IndexError):
                raised += 1
        loss = model[9:](hidden).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert raised == 18
    return collect(losses, modules=[model])
