"""Training loops whose steps repeat, so that the engine makes schedules and follows them.

A loop is a function of the number of a step. It knows nothing of coop.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .outcome import Outcome, collect

NUM_STEPS = 12


class Block(nn.Module):
    """Pre-norm, so that nobody saves the sums of the residual stream: they are dead soon."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value))
        return x + F.dropout(self.feed(self.norm2(x)), 0.1, self.training)


class Loop:
    """A model, its optimizer, and the losses so far."""

    def __init__(self, model: nn.Module, lr: float = 0.01) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.losses: list[Tensor] = []

    def step(self, number: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.passes(number)
        self.optimizer.step()

    def passes(self, number: int) -> None:
        """Forward and backward."""
        raise NotImplementedError

    def descend(self, output: Tensor) -> None:
        loss = output.square().mean()
        loss.backward()
        self.losses.append(loss.detach())

    def outcome(self) -> Outcome:
        return collect(self.losses, modules=[self.model], optimizers=[self.optimizer])


class Transformer(Loop):
    """A residual stream."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(*(Block(32) for _ in range(6)), nn.Linear(32, 32)))

    def passes(self, number: int) -> None:
        self.descend(self.model(torch.randn(8, 32, 32)))


class Perceptron(Loop):
    """Layers of two sizes."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        layers: list[nn.Module] = []
        for _ in range(8):
            layers += [nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Tanh()]
        super().__init__(nn.Sequential(*layers))

    def passes(self, number: int) -> None:
        self.descend(self.model(torch.randn(256, 32)))


class Convolutions(Loop):
    """Batch norm writes its statistics, dropout draws, and activations are written in place."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        layers: list[nn.Module] = []
        for number in range(6):
            layers += [nn.Conv2d(8 if number else 3, 8, 3, padding=1), nn.BatchNorm2d(8)]
            layers += [nn.ReLU(inplace=True), nn.Dropout(0.2)]
        super().__init__(nn.Sequential(*layers))

    def passes(self, number: int) -> None:
        self.descend(self.model(torch.randn(4, 3, 16, 16)))


class ChangesItsMind(Transformer):
    """Every third step leaves the way of the others in its middle, another one at its end."""

    def passes(self, number: int) -> None:
        x = torch.randn(8, 32, 32)
        for index, layer in enumerate(self.model.children()):
            if index == 3 and number % 3 == 2 and number > 4:
                x = x.sin()
            x = layer(x)
        if number == 8:
            x = x * x.detach().abs()
        self.descend(x)


class Buckets(Transformer):
    """Sequences of two lengths in turn."""

    def passes(self, number: int) -> None:
        self.descend(self.model(torch.randn(8, 32 if number % 2 else 48, 32)))


class Evaluates(Convolutions):
    """Between its steps it evaluates, with nothing saved for a backward pass."""

    def passes(self, number: int) -> None:
        super().passes(number)
        self.model.eval()
        with torch.no_grad():
            self.losses.append(self.model(torch.randn(4, 3, 16, 16)).mean())
        self.model.train()


class Accumulates(Transformer):
    """Two batches a step."""

    def passes(self, number: int) -> None:
        for _ in range(2):
            super().passes(number)


LOOPS: dict[str, Callable[[], Loop]] = {
    "transformer": Transformer,
    "perceptron": Perceptron,
    "convolutions": Convolutions,
    "changes its mind": ChangesItsMind,
    "buckets": Buckets,
    "evaluates": Evaluates,
    "accumulates": Accumulates,
}


def train(make: Callable[[], Loop], num_steps: int = NUM_STEPS) -> Outcome:
    loop = make()
    for number in range(num_steps):
        loop.step(number)
    return loop.outcome()
