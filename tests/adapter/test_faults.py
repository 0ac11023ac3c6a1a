"""What goes wrong leaves everything as it was, and training goes on."""

from __future__ import annotations

import contextlib
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

from .faults import (
    Setting,
    Training,
    expected_state,
    fail_everywhere,
    restore_statistics,
    same_bits,
    saved_statistics,
)

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20

pytestmark = pytest.mark.debug_build


@pytest.fixture(autouse=True, scope="module")
def quick_steps() -> Iterator[None]:
    """Garbage is collected often here: what torch and pytest have made by now is none. Tensors are
    too small for two threads, which on busy cores wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected_state()  # torch imports much of itself at the first step
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize(
    ("evicting", "num_layers", "half"),
    [
        ("nothing", 1, "passes"),
        ("not recorded", 1, "update"),
        pytest.param("in need", 2, "passes", marks=pytest.mark.slow_on_debug),
        ("everything", 1, "update"),
        pytest.param("nothing", 1, "update", marks=pytest.mark.slow),
        pytest.param("not recorded", 1, "passes", marks=pytest.mark.slow),
        pytest.param("in need", 2, "update", marks=pytest.mark.slow),
        pytest.param("everything", 1, "passes", marks=pytest.mark.slow),
    ],
)
def test_an_allocation_that_fails_anywhere_in_a_step_skips_that_batch_and_nothing_else(
    half: str, evicting: str, num_layers: int
) -> None:
    """In turn at every placement."""
    counts = fail_everywhere(Setting(half, evicting, num_layers))
    assert counts.placements >= counts.errors > 10
    assert counts.evictions > counts.placements or evicting in ("nothing", "not recorded")


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
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "body",
    [
        """
        import torch, coop
        inside = coop.budget(1 << 22, device="cpu", paranoid=True)
        inside.__enter__()
        kept = [torch.randn(64, 64).sin() for _ in range(20)]
        view = kept[0].t()
        leaf = torch.randn(64, 64, requires_grad=True)
        graph = (leaf * kept[1]).sin()
        """,
        """
        import torch, coop
        with coop.budget(1 << 22, device="cpu", paranoid=True):
            kept = [torch.randn(64, 64).sin() for _ in range(20)]
            leaf = torch.randn(64, 64, requires_grad=True)
            graph = (leaf * kept[1]).sin()
        """,
        """
        import sys, torch, coop
        with coop.budget(1 << 22, device="cpu", paranoid=True):
            kept = torch.randn(64, 64).sin()
            torch.kept = kept.clone()
            sys.exit(0)
        """,
    ],
    ids=["inside a budget", "after a budget", "exit inside a budget"],
)
@pytest.mark.slow_on_debug
def test_an_interpreter_that_ends_with_tensors_alive_ends_well(body: str) -> None:
    process = run_script(body)
    assert (process.returncode, process.stderr) == (0, "")
