"""The smallest slice of the tests, for `coop doctor` where torch is newer than what was tested."""

import hashlib
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f

import coop

BUDGET = "64MiB"


def run_program(program: Callable[[], list[Tensor]], *, paranoid: bool) -> str:
    """A checksum of what it gives; paranoid evicts all that can be after each operator."""
    torch.manual_seed(0)
    with (
        warnings.catch_warnings(),
        coop.budget(BUDGET, device="cpu", paranoid=paranoid, small_bytes=0),
    ):
        warnings.simplefilter("ignore", coop.SlowStepWarning)
        results = [result.detach().clone() for result in program()]
    content = b"".join(result.numpy().tobytes() for result in results)
    return hashlib.sha256(content).hexdigest()


def _train(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Two steps; the parameters and buffers then."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(*inputs).square().mean().backward()
        optimizer.step()
    return [*model.parameters(), *(each.float() for each in model.buffers())]


def _convolutions() -> list[Tensor]:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return _train(
        nn.Sequential(*layers, nn.Flatten(), nn.Linear(392, 5)), torch.randn(4, 3, 16, 16)
    )


def _attention() -> list[Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return _train(layer, torch.randn(3, 7, 16))


def _recurrence() -> list[Tensor]:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(6, 8, num_layers=2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.cells(x)[0]
            return hidden[:, -1]

    return _train(Last(), torch.randn(3, 5, 6))


def _writes() -> list[Tensor]:
    x = torch.arange(60.0).reshape(6, 10)
    y = x.sin()
    y[1:3] += x[2:4]
    y.t()[0].mul_(2)
    z = torch.zeros(6, 10).index_add_(0, torch.tensor([1, 1, 5]), y[:3])
    z.masked_fill_(x > 40, -1)
    return [x, y, z, torch.cat([y, z]).cumsum(0)]


def _randomness() -> list[Tensor]:
    x = torch.randn(50)
    first = f.dropout(x, 0.5)
    return [
        first,
        x + torch.rand_like(x),
        torch.randperm(20).float(),
        torch.normal(x, 1.0),
        first * 2,
    ]


def _autocast() -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return _train(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(9, 8)
        )


PROGRAMS: dict[str, Callable[[], list[Tensor]]] = {
    "convolutions": _convolutions,
    "attention": _attention,
    "recurrence": _recurrence,
    "writes": _writes,
    "randomness": _randomness,
    "autocast": _autocast,
}
