"""Many threads allocate, free and compute in one arena at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import coop
from coop._native import _C
from tests.bits import bits

pytestmark = pytest.mark.debug_build

NUM_THREADS = 8
NUM_ROUNDS = 40
KIB = 2**10
NUM_ATTEMPTS = 20


def work(seed: int, shared: list[Tensor]) -> list[Tensor]:
    """Values that die soon and values that stay, of this thread's and of what all threads share."""
    generator = torch.Generator().manual_seed(seed)
    leaf = torch.randn(32, 64, generator=generator).requires_grad_()
    kept: list[Tensor] = []
    for number in range(NUM_ROUNDS):
        x = leaf * shared[(seed + number) % len(shared)]
        y = torch.tanh(x) @ shared[number % len(shared)].t()
        noise = torch.randn(32, 32, generator=generator)
        z = (y + noise).sin().t()[::2]
        z = z * 2
        z.add_(1)
        with torch.no_grad():
            kept.append(F.dropout(y, 0.0) + z.detach().repeat(2, 1))
        z.sum().backward()
    assert leaf.grad is not None
    return [*kept, leaf.grad]


def in_threads(function: Callable[[int], list[Tensor]]) -> list[list[Tensor]]:
    """What the function makes of each thread's number; all of them start at once."""
    results: dict[int, list[Tensor]] = {}
    errors: list[BaseException] = []
    together = threading.Barrier(NUM_THREADS, timeout=600)

    def run(number: int) -> None:
        try:
            together.wait()
            results[number] = function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return [results[number] for number in range(NUM_THREADS)]


def shared_values() -> list[Tensor]:
    return [torch.linspace(-1, number + 1, 2048).view(32, 64).sin() for number in range(6)]


@pytest.mark.parametrize("paranoid", [False, True], ids=["in need", "everything evicted"])
def test_threads_in_one_arena_compute_what_each_computes_alone(paranoid: bool) -> None:
    expected = [work(number, shared_values()) for number in range(NUM_THREADS)]
    budget_bytes = 16 * 2**20 if paranoid else 900 * KIB
    with coop.budget(budget_bytes, paranoid=paranoid, small_bytes=0) as session:
        shared = shared_values()

        actual = in_threads(lambda number: work(number, shared))
        for result in (tensor for results in actual for tensor in results):
            result.sum()  # so that all of it is recomputed once, whatever was evicted before
        assert session._engine.is_valid()
        stats = session.stats()
        assert stats.peak_bytes <= stats.budget_bytes
        # They keep 1.3 MiB of 4 KiB each.
        assert stats.num_evictions > 90
        assert stats.num_replays > 90
    for left, right in zip(expected, actual, strict=True):
        for one, other in zip(left, right, strict=True):
            assert torch.equal(bits(one), bits(other))


# What follows meets what it is about in most of its turns on an idle machine, and in none on one
# that is busy enough. It never fails for that.


def evicted_meanwhile(session: coop.Session, drop: Callable[[], object]) -> None:
    """Drops something while another thread, under the engine's lock, evicts all there is."""
    evicts = threading.Event()

    def evict_all() -> None:
        evicts.set()
        session._engine.evict_all()  # lets other threads run Python

    thread = threading.Thread(target=evict_all)
    thread.start()
    evicts.wait()
    drop()
    thread.join()
    assert session._engine.is_valid()


# It overwrites what it evicts, so that there is time to drop something meanwhile.
debug_build_only = pytest.mark.skipif(
    not _C.__name__.endswith("_debug"),
    reason="an eviction takes no time, so that nothing can go meanwhile",
)


@debug_build_only
def test_a_tensor_may_go_when_it_is_about_to_be_evicted() -> None:
    """Its memory was exchanged while its destructor waited for the lock."""
    with coop.budget("512MiB", small_bytes=0) as session:
        zero = torch.zeros(16)
        for _ in range(NUM_ATTEMPTS):
            # At the right end, so that it is evicted after what is made on the left.
            values = [zero + 1]
            large = torch.full((2**26,), 1.0)
            evicted_meanwhile(session, values.clear)
            assert not session._engine.is_resident(large)


@debug_build_only
def test_a_tensor_may_go_in_the_middle_of_its_eviction() -> None:
    """The last to hold it was the thread that evicted it, under the lock."""
    with coop.budget("512MiB", small_bytes=0) as session:
        for _ in range(NUM_ATTEMPTS):
            before = session.stats().num_values
            values = [torch.full((2**26,), 1.0)]
            evicted_meanwhile(session, values.clear)
            torch.zeros(16)  # what goes like that ends with the next allocation
            assert session.stats().num_values == before


@pytest.mark.parametrize("turns", [10**5, 3 * 10**5, 10**6])
def test_a_tensor_may_go_while_it_is_copied_out_of_a_budget_that_is_left(turns: int) -> None:
    """It was dead when its copy was done, and died again."""
    with coop.budget("512MiB", small_bytes=0) as session:
        engine, before = session._engine, session.stats().num_values
        values = [torch.zeros(2**25)]
        engine.evict_all()
        assert session.stats().num_evictions == 1

        def drop() -> None:
            for _ in range(turns):  # nothing but the copy, under the engine's lock, takes long
                pass
            values.clear()

        thread = threading.Thread(target=drop)
        thread.start()
    thread.join()
    assert engine.is_valid()
    assert engine.stats()["num_values"] == before


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 10),
    "rand": lambda x: torch.rand(x.shape),
    "randn": lambda x: torch.randn(x.shape),
    "randint": lambda x: torch.randint(10, x.shape),
    "randperm": lambda x: torch.randperm(x.numel()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_another_thread_gets_no_number_twice_while_a_replay_draws(name: str) -> None:
    """It was there before the budget. No such operator takes a generator."""
    turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
    drawn: list[int] = []
    is_drawing, is_enough = threading.Event(), threading.Event()

    def outside() -> None:
        while turns.get():
            while not is_enough.is_set():
                drawn.append(int(torch.empty(1, dtype=torch.int64).random_()))
                is_drawing.set()
            is_drawing.clear()
            is_enough.clear()
            turns_ended.put(True)

    turns_ended: queue.SimpleQueue[bool] = queue.SimpleQueue()
    thread = threading.Thread(target=outside)
    thread.start()
    try:
        with coop.budget("64MiB", device="cpu", small_bytes=0) as session:
            ones = torch.ones(300_000)
            x = DRAWS[name](ones)
            expected = x.clone()
            for _ in range(10):
                assert coop.evict(x)
                turns.put(True)
                is_drawing.wait()
                coop.materialize(x)
                is_enough.set()
                turns_ended.get()
                assert torch.equal(bits(x), bits(expected))
            assert session.stats().num_replays >= 10
    finally:
        is_enough.set()
        turns.put(False)
        thread.join()
    assert len(set(drawn)) == len(drawn)


def test_numbers_that_another_thread_drew_meanwhile_are_no_wrong_result() -> None:
    """It was there before the budget, so that nothing holds it back while a replay draws."""
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
    drawn: queue.SimpleQueue[Tensor] = queue.SimpleQueue()

    def outside() -> None:
        while asked.get():
            drawn.put(torch.rand(3))

    is_disturbed = False

    def noise(x: Tensor) -> Tensor:
        if is_disturbed:
            asked.put(True)
            drawn.get()
        return x + torch.rand(256, 256)

    library = torch.library.Library("coop_drawn", "DEF")
    tag = torch.Tag.nondeterministic_seeded
    library.define("noise(Tensor x) -> Tensor", tags=(tag,))
    library.impl("noise", noise, "CPU")
    coop.allow_replay("coop_drawn::noise")
    thread = threading.Thread(target=outside)
    thread.start()
    try:
        with coop.budget("4MiB", device="cpu"):
            torch.manual_seed(0)
            noisy = torch.ops.coop_drawn.noise(torch.zeros(256, 256))
            expected = noisy.tolist()
            assert coop.evict(noisy)
            is_disturbed = True
            with pytest.raises(RuntimeError, match="a thread outside of the budget drew from"):
                noisy.sum()
            is_disturbed = False
            assert noisy.tolist() == expected
    finally:
        asked.put(False)
        thread.join()
        library._destroy()
