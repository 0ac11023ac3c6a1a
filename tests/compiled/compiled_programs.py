"""Training programs that compile something: `program(seed, backend)` leaves an `Outcome`.

They are large enough that values can leave, and small enough for a compiler that takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.adapter.outcome import Outcome, collect

CompiledProgram = Callable[[int, str], Outcome]

ROWS, WIDTH, DEPTH = 512, 64, 4


class Programs(dict[str, CompiledProgram]):
    """By name; as a decorator it adds a function under its own name."""

    def __call__(self, program: CompiledProgram) -> CompiledProgram:
        self[program.__name__] = program
        return program


# Whose regions are evicted and replayed at half of their peak, and those of which that is not said.
EVICTING = Programs()
OTHERS = Programs()


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0, norm: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH) if norm is None else norm()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


def train(
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    steps: int = 3,
    rows: Callable[[int], int] = lambda step: ROWS,
    **others: Any,
) -> Outcome:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = forward(torch.randn(rows(step), WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer], **others)


def blocks(seed: int, backend: str, **options: Any) -> nn.Sequential:
    """A model whose blocks are compiled each."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block(**options) for _ in range(DEPTH)))
    for block in model:
        block.compile(backend=backend)
    return model


@EVICTING
def by_block(seed: int, backend: str) -> Outcome:
    model = blocks(seed, backend)
    return train(model, model)


@EVICTING
def dropout_by_block(seed: int, backend: str) -> Outcome:
    model = blocks(seed, backend, dropout=0.3)
    return train(model, model)


@EVICTING
def batch_norm_by_block(seed: int, backend: str) -> Outcome:
    """Its statistics are written by the graph."""
    model = blocks(seed, backend, norm=lambda: nn.BatchNorm1d(WIDTH))
    return train(model, model)


@EVICTING
def dynamic_shapes(seed: int, backend: str) -> Outcome:
    """Sizes are inputs of the graphs."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block(dropout=0.1) for _ in range(DEPTH)))
    for block in model:
        block.compile(backend=backend, dynamic=True)
    return train(model, model, rows=lambda step: ROWS + 64 * (step % 3))


@EVICTING
def graph_breaks(seed: int, backend: str) -> Outcome:
    torch.manual_seed(seed)
    model = nn.ModuleList(Block() for _ in range(DEPTH))

    @torch.compile(backend=backend)
    def forward(x: Tensor) -> Tensor:
        for i, block in enumerate(model):
            x = block(x)
            if i % 2 == 0:
                torch._dynamo.graph_break()
        return x

    return train(model, forward)


@EVICTING
def attention_in_one_graph(seed: int, backend: str) -> Outcome:
    torch.manual_seed(seed)
    model = nn.Sequential(*(Attention() for _ in range(DEPTH)))
    for block in model:
        block.compile(backend=backend, fullgraph=True)
    return train(model, lambda x: model(x.view(8, -1, WIDTH)))


@EVICTING
def compiled_loss(seed: int, backend: str) -> Outcome:
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block() for _ in range(DEPTH)), nn.Linear(WIDTH, 256))

    @torch.compile(backend=backend)
    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), logits.detach().argmax(1), reduction="none")

    return train(model, lambda x: loss(model(x)))


@EVICTING
def half_precision(seed: int, backend: str) -> Outcome:
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block() for _ in range(DEPTH)))
    for block in model:
        block.compile(backend=backend)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    return train(model, forward)


@EVICTING
def checkpointed_blocks(seed: int, backend: str) -> Outcome:
    """Torch recomputes by itself, with random numbers put back."""
    model = blocks(seed, backend, dropout=0.2)

    def forward(x: Tensor) -> Tensor:
        for block in model:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    return train(model, forward)


@EVICTING
def without_gradients(seed: int, backend: str) -> Outcome:
    """Results of all blocks are kept, and read again at the end."""
    model = blocks(seed, backend, dropout=0.3)
    results = []
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(ROWS, WIDTH)
            for block in model:
                x = block(x)
                results.append(x)
    return collect([sum((r.sum() for r in results), torch.zeros(()))], results=results[::3])


@EVICTING
def views_come_out(seed: int, backend: str) -> Outcome:
    """Results show the memory of inputs, of each other, and of what is saved."""
    torch.manual_seed(seed)
    weights = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(DEPTH)]

    @torch.compile(backend=backend)
    def step(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        y = torch.tanh(x @ weight)
        return y, y.t(), y[: ROWS // 2], x.view(-1), x

    losses, kept = [], []
    for _ in range(2):
        x = torch.randn(ROWS, WIDTH)
        for weight in weights:
            y, turned, half, flat, same = step(x, weight)
            x = y + 0.1 * turned.t() + torch.cat([half, half]) + 0.01 * flat.view_as(y) + same
            kept.append(half.detach())
        loss = x.square().mean()
        loss.backward()
        losses.append(loss.detach())
    return collect(losses, kept=kept, gradients=[w.grad for w in weights if w.grad is not None])


@EVICTING
def inputs_are_written(seed: int, backend: str) -> Outcome:
    """A graph writes values that have recipes, and such that have none."""
    torch.manual_seed(seed)
    total = torch.zeros(ROWS, WIDTH)

    @torch.compile(backend=backend)
    def add(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
        total.add_(x)
        y.mul_(0.5)
        return torch.tanh(total + y)

    results = []
    for _ in range(8):
        x = torch.randn(ROWS, WIDTH)
        y = x * 2
        results.append(add(total, x, y))
        results.append(y)
    read = sum((r.sum() for r in results), torch.zeros(()))
    return collect([read], results=results, total=total)


@EVICTING
def recompiled_in_between(seed: int, backend: str) -> Outcome:
    """What is replayed is what ran, whatever the function has become since."""
    torch.manual_seed(seed)
    scale = [1.0]

    @torch.compile(backend=backend)
    def step(x: Tensor) -> Tensor:
        return torch.sin(x * scale[0]) + x

    results = []
    for i in range(6):
        scale[0] = 1.0 + i % 3
        x = torch.randn(ROWS, WIDTH)
        for _ in range(3):
            x = step(x)
            results.append(x)
    read = sum((r.sum() for r in results), torch.zeros(()))
    return collect([read], results=results)


@EVICTING
def gradients_twice(seed: int, backend: str) -> Outcome:
    """A graph is kept, and its backward runs again: torch allows that where nothing is donated."""
    model = blocks(seed, backend)
    with torch._functorch.config.patch(donated_buffer=False):
        loss = model(torch.randn(ROWS, WIDTH)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    return collect([loss.detach()], modules=[model])


@EVICTING
def backward_on_two_threads(seed: int, backend: str) -> Outcome:
    models = [blocks(seed + i, backend) for i in range(2)]
    losses = [model(torch.randn(ROWS, WIDTH)).square().mean() for model in models]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(loss.backward) for loss in losses]:
            done.result()
    return collect([loss.detach() for loss in losses], modules=models)


@OTHERS
def whole_model(seed: int, backend: str) -> Outcome:
    """One forward and one backward graph: only what is saved lies between them."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block(dropout=0.1) for _ in range(DEPTH)))
    return train(model, torch.compile(model, backend=backend))


@OTHERS
def compiled_optimizer(seed: int, backend: str) -> Outcome:
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block() for _ in range(DEPTH)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    step = torch.compile(optimizer.step, backend=backend)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer])


@OTHERS
def compiled_backward_pass(seed: int, backend: str) -> Outcome:
    """Compiled autograd: one graph for all gradients, accumulated inside of it."""
    model = blocks(seed, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
            loss = model(torch.randn(ROWS, WIDTH)).square().mean()
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


@OTHERS
def accumulated_gradients(seed: int, backend: str) -> Outcome:
    model = blocks(seed, backend, dropout=0.1)
    losses = []
    for _ in range(3):
        loss = model(torch.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


@OTHERS
def random_numbers_inside(seed: int, backend: str) -> Outcome:
    """Normal numbers come in pairs: a graph may draw none, and use one that was left."""
    torch.manual_seed(seed)

    @torch.compile(backend=backend)
    def noisy(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + torch.randn_like(x), torch.rand(x.shape[0]) * torch.randn(())

    results = []
    for _ in range(6):
        x, y = noisy(torch.randn(ROWS, WIDTH))
        results += [x, y * torch.randn(())]
    return collect([results[0].sum()], results=results)
