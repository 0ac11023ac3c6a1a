"""An allocation that fails, in turn at every placement of a training step: `make test-faults`.

The error is OutOfBudgetError, the program skips the batch, and after the next one it has bit for
bit what a plain program has that never saw the batch. CI does the same with a smaller model.
"""

from __future__ import annotations

import copy
import gc
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coop
from coop._native import _C
from tests.bits import bits

MIB = 2**20
LARGE_NUM_LAYERS = 3


class Training:
    """A small model with everything that has state: dropout, batch norm, Adam."""

    def __init__(self, num_layers: int = 1) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for number in range(num_layers):
            layers += [nn.Linear(64 if number else 32, 64), nn.BatchNorm1d(64)]
            layers += [nn.ReLU(inplace=True), nn.Dropout(0.3)]
        self.model = nn.Sequential(*layers, nn.Linear(64, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.batches = [(torch.randn(128, 32), torch.randint(0, 8, (128,))) for _ in range(3)]

    def forward_backward(self, number: int) -> Tensor:
        torch.manual_seed(number)
        self.optimizer.zero_grad(set_to_none=True)
        x, y = self.batches[number]
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss.detach()

    def step(self, number: int) -> None:
        self.forward_backward(number)
        self.optimizer.step()

    def state(self) -> list[Tensor]:
        states = [t for s in self.optimizer.state.values() for t in s.values()]
        return [*self.model.state_dict().values(), *states]


def same_bits(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(bits(a), bits(b)) for a, b in zip(left, right, strict=True)
    )


def saved_statistics(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def restore_statistics(model: nn.Module, saved: list[Tensor]) -> None:
    with torch.no_grad():
        for buffer, content in zip(model.buffers(), saved, strict=True):
            buffer.copy_(content)


def expected_state(num_layers: int = 1) -> list[Tensor]:
    """Batch 1 is skipped."""
    training = Training(num_layers)
    training.step(0)
    training.step(2)
    return [t.clone() for t in training.state()]


@dataclass(frozen=True)
class Setting:
    """In which half of a step placements fail, and in what budget."""

    half: str  # "passes", forward and backward, or "update", the optimizer's
    # "nothing"; the same where that is "not recorded"; "in need", in four fifths of what it holds
    # at most; "everything"
    evicting: str
    num_layers: int

    def budget_bytes(self) -> int:
        if self.evicting != "in need":
            return 64 * MIB
        with coop.budget(64 * MIB, device="cpu", small_bytes=0) as session:
            training = Training(self.num_layers)
            for number in range(3):
                training.step(number)
        return session.stats().peak_bytes * 4 // 5


@dataclass
class Counts:
    """What came of a setting."""

    placements: int = 0
    errors: int = 0  # the others failed where the engine tried something cheaper first
    evictions: int = 0


def fail_everywhere(setting: Setting) -> Counts:
    """Trains as often as the half has placements, and each time the next one fails."""
    expected = expected_state(setting.num_layers)
    budget_bytes = setting.budget_bytes()
    counts = Counts()
    while True:
        failing = counts.placements + 1
        with coop.budget(
            budget_bytes,
            device="cpu",
            paranoid=setting.evicting == "everything",
            small_bytes=0,
            quiet_after=int(setting.evicting == "not recorded"),
        ) as session:
            engine = session._engine
            training = Training(setting.num_layers)
            training.step(0)
            half = _fail_passes if setting.half == "passes" else _fail_update
            left, is_error = half(engine, training, failing)
            assert engine.is_valid()
            training.step(2)
        assert same_bits(expected, training.state()), f"placement {failing}"
        counts.evictions += session.stats().num_evictions
        if left > 0:
            assert not is_error
            return counts
        counts.placements += 1
        counts.errors += is_error


def _fail_passes(engine: _C.Engine, training: Training, failing: int) -> tuple[int, bool]:
    """The batch's mark on batch norm's statistics is undone by the program, as it is the program's
    to undo without a budget too. Returns what is left of the count, and whether it was an error."""
    statistics = saved_statistics(training.model)
    engine.fail_placement(failing)
    is_error = False
    try:
        training.forward_backward(1)
    except coop.OutOfBudgetError:
        is_error = True
    left = engine.fail_placement(0)
    training.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    restore_statistics(training.model, statistics)
    return left, is_error


def _fail_update(engine: _C.Engine, training: Training, failing: int) -> tuple[int, bool]:
    """What Adam had done by then stays done, as without a budget: the program goes back to what it
    had saved."""
    model = copy.deepcopy(training.model.state_dict())
    optimizer = copy.deepcopy(training.optimizer.state_dict())
    training.forward_backward(1)
    engine.fail_placement(failing)
    is_error = False
    try:
        training.optimizer.step()
    except coop.OutOfBudgetError:
        is_error = True
    left = engine.fail_placement(0)
    training.model.load_state_dict(model)
    training.optimizer.load_state_dict(optimizer)
    return left, is_error


def main() -> int:
    torch.set_num_threads(1)
    # Garbage is collected often here: what torch has made by now, and at a first step, is none.
    expected_state()
    gc.collect()
    gc.freeze()
    for half in ("passes", "update"):
        for evicting in ("nothing", "not recorded", "in need", "everything"):
            start = time.perf_counter()
            counts = fail_everywhere(Setting(half, evicting, LARGE_NUM_LAYERS))
            seconds = time.perf_counter() - start
            print(f"{half}, evicting {evicting}: {counts}, {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
