"""Threads that meet in one engine, with Python's lock among the others (Note [Lock order])."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import coop
from coop._native import _C

from .slices import first

pytestmark = pytest.mark.debug_build

TIME_LIMIT_S = 600


def run_to_the_end(program: str) -> None:
    """In a process of its own: one that hangs is an error."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        timeout=TIME_LIMIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]


ASKING = """
    import os, sys, threading, torch, coop
    sys.setswitchinterval(1e-6)
    over = threading.Event()
    def beside(ask, body):
        def loop():
            while not over.is_set():
                ask()
        threads = [threading.Thread(target=loop) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            body()
        finally:
            over.set()
            for thread in threads:
                thread.join()
    """


@pytest.mark.parametrize(
    "ask", first(1, ["session.stats()", "coop.is_resident(x)", "x.is_pinned()"])
)
def test_source_lines_are_recorded_beside_a_thread_that_asks(ask: str) -> None:
    program = f"""
    with coop.budget("8MiB", device="cpu") as session:
        session.start_trace(source_lines=True)
        x = torch.ones(1000)
        lines = compile("y = x + 1\\n" * 1000, "lines.py", "exec")
        beside(lambda: {ask}, lambda: exec(lines))
    print("done")
    """
    run_to_the_end(ASKING + program)


def test_storages_that_python_alone_holds_are_evicted_beside_a_thread_that_asks() -> None:
    program = """
    with coop.budget("8MiB", device="cpu", small_bytes=0) as session:
        x = torch.ones(1000)
        def evict():
            for _ in range(200):
                storages = [(x + i).untyped_storage() for i in range(10)]
                session._engine.evict_all()
                del storages
        beside(session.stats, evict)
    print("done")
    """
    run_to_the_end(ASKING + program)


def test_a_child_inherits_no_lock_that_another_thread_holds() -> None:
    program = """
    with coop.budget("8MiB", device="cpu", small_bytes=0) as session:
        x = torch.ones(1000)
        def fork():
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    globals().pop("x")  # tells the engine, under its lock
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        def allocate():
            coop._native._C.set_thread_enabled(True)
            y = [torch.ones(100) + 1 for _ in range(100)]
        beside(allocate, fork)
    print("done")
    """
    run_to_the_end(ASKING + program)


def in_a_thread_of_the_budget(function: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        _C.set_thread_enabled(True)
        function()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


class Pause:
    """An operator that writes half of its work in place, and waits before the rest."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()


pause = Pause()


@torch.library.custom_op("coop_locks::add_slowly", mutates_args=("x",))
def add_slowly(x: Tensor, once: bool) -> None:
    x.mul_(0).add_(7)
    if once and not pause.begun.is_set():
        pause.begun.set()
        assert pause.go_on.wait(60)
    x.add_(1)


coop.allow_replay("coop_locks::add_slowly")


@pytest.fixture(autouse=True)
def fresh_pause() -> None:
    pause.__init__()  # type: ignore[misc]


def test_two_threads_write_halves_of_one_storage_at_once() -> None:
    with coop.budget("8MiB", small_bytes=0):
        x = torch.zeros(2048) + 0.5
        first = in_a_thread_of_the_budget(lambda: add_slowly(x[:1024], True))
        assert pause.begun.wait(60)
        x[1024:].add_(1)
        pause.go_on.set()
        first.join()
        coop.evict(x)
        expected = torch.cat([torch.full((1024,), 8.0), torch.full((1024,), 1.5)])
        assert torch.equal(x, expected)


def test_a_replay_does_not_read_what_another_thread_is_writing() -> None:
    with coop.budget("8MiB", small_bytes=0):
        x = torch.zeros(2048) + 0.5
        y = x * 2
        assert coop.evict(y)
        writer = in_a_thread_of_the_budget(lambda: add_slowly(x, True))
        assert pause.begun.wait(60)
        assert torch.equal(y, torch.ones(2048))
        pause.go_on.set()
        writer.join()
        coop.evict(x)
        assert torch.equal(x, torch.full((2048,), 8.0))
        assert torch.equal(y, torch.ones(2048))


def test_nobody_draws_from_a_generator_that_a_replay_has_put_back() -> None:
    torch.manual_seed(1)
    plain = torch.nn.functional.dropout(torch.ones(4096)), torch.bernoulli(torch.full((4096,), 0.5))
    draws = [torch.rand(64) for _ in range(200)]
    torch.manual_seed(1)
    with coop.budget("8MiB", device="cpu", small_bytes=0) as session:
        x = torch.ones(4096) + 0
        kept = torch.nn.functional.dropout(x), torch.bernoulli(x * 0.5)
        drawn: list[Tensor] = []

        def draw() -> None:
            drawn.extend(torch.rand(64) for _ in range(200))

        thread = in_a_thread_of_the_budget(draw)
        while thread.is_alive():
            session._engine.evict_all()
            for tensor in kept:
                coop.materialize(tensor)
        thread.join()
        for got, expected in zip([*drawn, *kept], [*draws, *plain], strict=True):
            assert torch.equal(got, expected)


def test_unpinning_leaves_the_pins_that_keep_others_safe() -> None:
    with coop.budget("8MiB", device="cpu", small_bytes=0) as session:
        base = torch.ones(1024)
        pointed, shared, kept = base * 2, base * 3, base * 4
        address = pointed.data_ptr()
        array = shared.numpy()
        for tensor in (pointed, shared, kept):
            coop.keep(tensor)
            coop.unkeep(tensor)
        session._engine.evict_all()
        assert [coop.is_resident(tensor) for tensor in (pointed, shared, kept)] == [
            True,
            True,
            False,
        ]
        assert pointed.data_ptr() == address
        assert np.array_equal(array, np.full(1024, 3.0, dtype=np.float32))


def test_a_pinned_tensor_stays_where_it_is_when_a_write_to_it_fails() -> None:
    with coop.budget("8MiB", device="cpu", small_bytes=0) as session:
        x = torch.ones(1024) * 2
        coop.keep(x)
        address = torch._C.TensorBase.data_ptr(x)
        places, fives = x > 1, torch.full((1024,), 5.0)
        session._engine.fail_placement(1)
        with pytest.raises(coop.OutOfBudgetError):
            x.index_put_((places,), fives)  # it lists the places in memory of its own
        assert coop.is_resident(x)
        assert torch._C.TensorBase.data_ptr(x) == address
        assert torch.equal(x, torch.full((1024,), 2.0))


def test_an_operator_is_not_taken_for_one_that_was_at_its_address() -> None:
    for number in range(20):
        library = torch.library.Library("coop_locks_gone", "DEF")
        name = f"op{number}"
        arguments = ", ".join(f"Tensor x{i}" for i in range(1 + number % 2))
        library.define(f"{name}({arguments}) -> Tensor")
        writes = _C.operator_info(f"coop_locks_gone::{name}", "")["writes"]
        assert len(writes) == 1 + number % 2
        library._destroy()
