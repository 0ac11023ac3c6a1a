"""Threads and tasks that a program starts inside a budget, and threads that were there before."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import coop
from coop._native import _C
from coop.runtime import runtime

pytestmark = pytest.mark.debug_build


def product() -> Tensor:
    x = torch.arange(65536, dtype=torch.float32).view(256, 256) / 65536
    return x @ x


def in_a_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_that_is_started_inside_is_inside() -> None:
    plain = product() + 1
    with coop.budget("8MiB") as session:
        t = product()
        assert coop.evict(t)
        assert in_a_thread(_C.is_thread_enabled)
        later = in_a_thread(lambda: t + 1)
        # What it made is the budget's, and can be evicted.
        assert session._engine.owns(later)
        assert coop.evict(later)
        assert torch.equal(later, plain)
    assert not in_a_thread(_C.is_thread_enabled)


def test_so_is_a_subclass_with_its_own_run_and_what_it_starts() -> None:
    class Worker(threading.Thread):
        inside: tuple[bool, bool] = (False, False)

        def run(self) -> None:
            self.inside = (_C.is_thread_enabled(), in_a_thread(_C.is_thread_enabled))

    with coop.budget("8MiB"):
        worker = Worker()
        worker.start()
        worker.join()
        assert worker.inside == (True, True)
        assert "run" not in worker.__dict__
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            worker.start()


def test_a_task_is_inside_although_its_pool_was_there_before() -> None:
    plain = product() + 1
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(_C.is_thread_enabled).result()
        with coop.budget("8MiB"):
            t = product()
            assert coop.evict(t)
            assert torch.equal(pool.submit(lambda: t + 1).result(), plain)
        assert not pool.submit(_C.is_thread_enabled).result()


@pytest.fixture
def elder() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Runs functions on a thread that no budget has seen start."""
    tasks: queue.Queue[Callable[[], Any] | None] = queue.Queue()
    results: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        while (task := tasks.get()) is not None:
            try:
                results.put(task())
            except Exception as error:
                results.put(error)

    thread = threading.Thread(target=run)
    thread.start()

    def call(function: Callable[[], Any]) -> Any:
        tasks.put(function)
        return results.get(timeout=600)

    yield call
    tasks.put(None)
    thread.join()


READS: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy().tolist(),
    "an address": lambda t: [t.data_ptr() > 0],
    "materialize": lambda t: (coop.current_session() and coop.materialize(t), t.tolist())[1],
}


@pytest.mark.parametrize("name", READS)
def test_a_thread_that_was_there_before_reads_what_is_evicted(
    name: str, elder: Callable[[Callable[[], Any]], Any]
) -> None:
    plain = READS[name](product())
    with coop.budget("8MiB"):
        t = product()
        assert coop.evict(t)
        assert not elder(_C.is_thread_enabled)
        assert elder(lambda: READS[name](t)) == plain


def test_a_loader_reads_what_is_evicted() -> None:
    plain = list(DataLoader(TensorDataset(product()), 64))
    with coop.budget("8MiB"):
        t = product()
        assert coop.evict(t)
        for (a,), (b,) in zip(plain, DataLoader(TensorDataset(t), 64), strict=True):
            assert torch.equal(a, b)


def test_a_backward_pass_of_a_started_thread() -> None:
    def train() -> Tensor:
        weight = torch.full((256, 256), 0.01, requires_grad=True)
        ((product() @ weight).sin() @ weight).sum().backward()
        assert weight.grad is not None
        return weight.grad

    plain = train()
    with coop.budget("16MiB", paranoid=True, small_bytes=0):
        gradient = in_a_thread(train)
        assert torch.equal(gradient, plain)


def test_a_thread_outlives_its_budget() -> None:
    left = threading.Event()
    results: list[Tensor] = []
    made = threading.Event()

    def work() -> None:
        t = product()
        made.set()
        left.wait(timeout=600)
        results.append(t + product())

    with coop.budget("8MiB") as session:
        engine = weakref.ref(session._engine)
        thread = threading.Thread(target=work)
        thread.start()
        made.wait(timeout=600)
    gc.collect()
    assert engine() is not None  # an operator of the thread may be using it
    left.set()
    thread.join()
    gc.collect()
    assert engine() is None
    assert runtime.threads.num_held() == 0
    assert torch.equal(results[0], product() * 2)


def test_threads_go_on_while_budgets_come_and_go() -> None:
    stop = threading.Event()
    plain = product().sin()
    wrong: list[int] = []
    started: list[threading.Thread] = []

    def work() -> None:
        while not stop.is_set():
            if not torch.equal(product().sin(), plain):
                wrong.append(1)

    for _ in range(3):
        with coop.budget("8MiB"):
            started.append(threading.Thread(target=work))
            started[-1].start()
            for _ in range(20):
                assert torch.equal(product().sin(), plain)
    stop.set()
    for thread in started:
        thread.join()
    assert wrong == []
    assert runtime.threads.num_held() == 0


def test_a_task_that_never_runs_keeps_nothing() -> None:
    busy = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with coop.budget("8MiB"):
            first = pool.submit(busy.wait, 60)
            second = pool.submit(product)
            assert second.cancel()
        busy.set()
        first.result()
    del first, second
    gc.collect()
    with coop.budget("8MiB"):
        pass
    assert runtime.threads.num_held() == 0
