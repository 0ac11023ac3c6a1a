"""What goes wrong in the middle of things leaves everything as it was, and training goes on."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import coop
from coop._native import _C
from tests.bits import bits

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20

pytestmark = pytest.mark.debug_build


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """Garbage is collected often here: what torch and pytest have made by now is none."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Training:
    """A small model with everything that has state: dropout, batch norm, Adam."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(32, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(inplace=True),
            nn.Dropout(0.3),
            nn.Linear(64, 64),
            nn.Tanh(),
            nn.Linear(64, 8),
        )
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


def expected_state() -> list[Tensor]:
    """Batch 1 is skipped."""
    training = Training()
    training.step(0)
    training.step(2)
    return [t.clone() for t in training.state()]


@pytest.mark.parametrize("paranoid", [False, True])
def test_an_allocation_that_fails_anywhere_in_a_step_skips_that_batch_and_nothing_else(
    paranoid: bool,
) -> None:
    """In turn at every placement of forward and backward. The batch's mark on batch norm's
    statistics is undone by the program, as it is the program's to undo without a budget too."""
    expected = expected_state()
    failing, num_failed = 1, 0
    while True:
        with coop.budget(64 * MIB, paranoid=paranoid, small_bytes=0) as session:
            engine = session._engine
            training = Training()
            training.step(0)
            statistics = saved_statistics(training.model)
            engine.fail_placement(failing)
            try:
                training.forward_backward(1)
                failed = False
            except coop.OutOfBudgetError:
                failed = True
            left = engine.fail_placement(0)
            # One that fails where the engine tries something cheaper first is nobody's error.
            assert left == 0 or not failed
            training.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            assert engine.is_valid()
            restore_statistics(training.model, statistics)
            training.step(2)
        assert same_bits(expected, training.state()), f"placement {failing}"
        if left > 0:
            break
        num_failed += failed
        failing += 1 if failing < 120 else 7
    assert num_failed > 30


def test_an_allocation_that_fails_anywhere_in_an_optimizer_s_step_is_undone_by_the_program() -> (
    None
):
    """What Adam had done by then stays done, as without a budget: the program goes back to what it
    had saved, and trains on as one that skipped the batch."""
    expected = expected_state()
    failing, num_failed = 1, 0
    while True:
        with coop.budget(64 * MIB, small_bytes=0) as session:
            engine = session._engine
            training = Training()
            training.step(0)
            model = copy.deepcopy(training.model.state_dict())
            optimizer = copy.deepcopy(training.optimizer.state_dict())
            training.forward_backward(1)
            engine.fail_placement(failing)
            try:
                training.optimizer.step()
                failed = False
            except coop.OutOfBudgetError:
                failed = True
            left = engine.fail_placement(0)
            assert engine.is_valid()
            training.model.load_state_dict(model)
            training.optimizer.load_state_dict(optimizer)
            training.step(2)
        assert same_bits(expected, training.state()), f"placement {failing}"
        if left > 0:
            break
        num_failed += failed
        failing += 1
    assert num_failed > 10


def test_an_operator_that_raises_midway_leaves_what_plain_torch_leaves() -> None:
    """`_foreach_mul_` writes the first tensor and then raises at the second."""

    def program() -> list[Tensor]:
        first = torch.arange(4096.0).sin()
        second = torch.arange(4096)
        before = first * 2
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch._foreach_mul_([first, second], [1.5, 0.5])
        return [first, second, before, first + before]

    expected = program()
    with coop.budget(1 * MIB, paranoid=True) as session:
        actual = program()
        assert session._engine.is_valid()
    assert same_bits(expected, actual)


def test_an_autograd_function_that_raises_in_backward_leaves_a_working_session() -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            raise ValueError("midway")

    expected = expected_state()
    with coop.budget(64 * MIB, paranoid=True, small_bytes=0) as session:
        training = Training()
        training.step(0)
        statistics = saved_statistics(training.model)
        x, _ = training.batches[1]
        with pytest.raises(ValueError, match="midway"):
            Raises.apply(training.model(x)).sum().backward()
        training.optimizer.zero_grad(set_to_none=True)
        restore_statistics(training.model, statistics)
        assert session._engine.is_valid()
        training.step(2)
    assert same_bits(expected, training.state())


@contextlib.contextmanager
def sigint_after(seconds: float) -> Iterator[None]:
    """As if the user pressed Ctrl-C."""
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    # A shell's background job starts with SIGINT ignored.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, previous)
        signal.signal(signal.SIGINT, interrupt)


def test_sigint_at_a_random_time_of_a_step_skips_that_batch_and_nothing_else() -> None:
    expected = expected_state()
    rng = random.Random(0)
    num_interrupted = 0
    for _ in range(40):
        with coop.budget(64 * MIB, paranoid=True, small_bytes=0) as session:
            training = Training()
            training.step(0)
            statistics = saved_statistics(training.model)
            try:
                with sigint_after(rng.uniform(1e-4, 5e-3)):
                    training.forward_backward(1)
            except KeyboardInterrupt:
                num_interrupted += 1
            training.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            assert session._engine.is_valid()
            restore_statistics(training.model, statistics)
            training.step(2)
        assert same_bits(expected, training.state())
    assert num_interrupted > 0


def test_sigint_at_a_random_time_of_a_budget_ends_that_budget_and_the_next_one_works() -> None:
    """Also while it is entered and left: nothing stays switched on, and no tensor is lost."""
    rng = random.Random(1)
    methods = {name: torch.Tensor.__dict__.get(name) for name in ("tolist", "data_ptr")}
    expected = torch.arange(4096.0).sin()
    outside = torch.arange(4096.0)
    num_interrupted = 0
    for _ in range(150):
        kept: list[Tensor] = []
        try:
            with (
                sigint_after(rng.uniform(1e-5, 3e-3)),
                coop.budget(4 * MIB, paranoid=True, small_bytes=0, events=True),
            ):
                for _ in range(20):
                    kept.append(outside.sin())
        except KeyboardInterrupt:
            num_interrupted += 1
        gc.collect()
        assert coop.current_session() is None
        assert not _C.is_thread_enabled()
        assert all(torch.equal(tensor, expected) for tensor in kept)
    assert num_interrupted > 0
    with coop.budget(4 * MIB):
        again = outside.sin()
    assert torch.equal(again, expected)
    assert {name: torch.Tensor.__dict__.get(name) for name in methods} == methods


def test_a_data_loader_with_forked_workers_trains_inside_a_budget() -> None:
    def program() -> list[Tensor]:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(64, 32), torch.randint(0, 8, (64,)))
        model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context="fork")
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    expected = program()
    with coop.budget(2 * MIB) as session:
        actual = program()
    assert same_bits(expected, actual)
    assert session.stats().num_operators > 0


def test_a_forked_child_computes_outside_of_the_budget() -> None:
    with coop.budget(1 * MIB):
        parent = torch.arange(4096.0).sin()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                big = torch.ones(4 * MIB)  # more than the parent's budget
                code = 0 if float(big.sum()) == 4 * MIB else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        doubled = parent * 2
    assert torch.equal(doubled, torch.arange(4096.0).sin() * 2)


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "body",
    [
        """
        import torch, coop
        inside = coop.budget(1 << 22, paranoid=True)
        inside.__enter__()
        kept = [torch.randn(64, 64).sin() for _ in range(20)]
        view = kept[0].t()
        leaf = torch.randn(64, 64, requires_grad=True)
        graph = (leaf * kept[1]).sin()
        """,
        """
        import torch, coop
        with coop.budget(1 << 22, paranoid=True):
            kept = [torch.randn(64, 64).sin() for _ in range(20)]
            leaf = torch.randn(64, 64, requires_grad=True)
            graph = (leaf * kept[1]).sin()
        """,
        """
        import sys, torch, coop
        with coop.budget(1 << 22, paranoid=True):
            kept = torch.randn(64, 64).sin()
            torch.kept = kept.clone()
            sys.exit(0)
        """,
    ],
    ids=["inside a budget", "after a budget", "exit inside a budget"],
)
def test_an_interpreter_that_ends_with_tensors_alive_ends_well(body: str) -> None:
    process = run_script(body)
    assert (process.returncode, process.stderr) == (0, "")
