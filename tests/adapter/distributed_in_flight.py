"""Collectives that are still running: what they use stays until they are done, and not for good.

Rank 1 takes part when rank 0 says so, by the store: what rank 0 sees in between is no accident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import coop

IN_FLIGHT: dict[str, Callable[[], list[Tensor]]] = {}
_num_meetings = 0


def _in_flight(program: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    IN_FLIGHT[program.__name__] = program
    return program


def made(seed: int = 0, size: int = 64) -> Tensor:
    """Recomputable, and another one in each process."""
    x = torch.arange(size * size, dtype=torch.float32).reshape(size, size)
    return (x * (2 + dist.get_rank()) + seed).sin() * 2


def leaves(x: Tensor) -> bool:
    """Whether it can be evicted now; without a budget there is nothing to ask."""
    return coop.current_session() is None or coop.evict(x)


def stays(x: Tensor) -> bool:
    return coop.current_session() is None or not coop.evict(x)


def late(first: Callable[[], Any], then: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Rank 0 begins by `first` and does `then`; only after that rank 1 does `second`."""
    global _num_meetings
    _num_meetings += 1
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait([f"meeting {_num_meetings}"])
        return second()
    work = first()
    then()
    store.set(f"meeting {_num_meetings}", "")
    return work


def finish(work: Any) -> None:
    """Waits. (The future of a Work may be done a moment before it says so itself.)"""
    work.wait()
    while not work.is_completed():
        pass


@_in_flight
def what_is_read_may_leave_again() -> list[Tensor]:
    x = made()
    parts = [torch.zeros(64, 64) for _ in range(2)]

    def begin() -> Any:
        return dist.all_gather(parts, x, async_op=True)

    def look() -> None:
        assert stays(x)

    finish(late(begin, look, begin))
    assert leaves(x)
    return [x, x + 1, *parts]


@_in_flight
def what_is_read_makes_room_for_others() -> list[Tensor]:
    """Nobody asks: whoever allocates looks. There is room only where `x` is."""
    session = coop.current_session()
    x = made(size=512)
    parts = [torch.zeros(1, 512) for _ in range(2)]
    finish(dist.all_gather(parts, x[:1], async_op=True))
    others: list[Tensor] = []
    while session is not None and coop.is_resident(x):
        others.append(coop.keep(torch.zeros(2**18 - 1024)))
    return [x, *parts]


@_in_flight
def what_is_written_is_fixed() -> list[Tensor]:
    x = made()
    before = x * 3

    def begin() -> Any:
        return dist.all_reduce(x, async_op=True)

    def look() -> None:
        assert stays(x)

    finish(late(begin, look, begin))
    assert stays(x)
    return [x, before, x + 1]


@_in_flight
def what_is_sent_may_leave_once_its_work_is_dropped() -> list[Tensor]:
    """A send is known to be done when it is waited for, or when nobody can."""
    x, received = made(), torch.zeros(64, 64)

    def begin() -> Any:
        return dist.isend(x, 1)

    def look() -> None:
        assert stays(x)

    def receive() -> Any:
        return dist.irecv(received, 0)

    work = late(begin, look, receive)
    if dist.get_rank() == 1:
        work.wait()
    dist.barrier()
    del work
    assert leaves(x)
    return [x, received]


@_in_flight
def what_is_read_may_be_written_afterwards() -> list[Tensor]:
    x = made()
    parts = [torch.zeros(64, 64) for _ in range(2)]
    work = dist.all_gather(parts, x, async_op=True)
    work.wait()
    x.add_(1)
    y = x * 2
    finish(work)
    leaves(x)
    leaves(y)
    return [x, y, *parts]


@_in_flight
def inputs_of_all_kinds() -> list[Tensor]:
    """None of these writes what it reads, whatever way the process group goes."""
    first = dist.get_rank() == 0
    kept: list[Tensor] = []
    inputs: list[Tensor] = []

    def given(*tensors: Tensor) -> list[Tensor]:
        inputs.extend(tensors)
        return list(tensors)

    def room(*shape: int) -> Tensor:
        kept.append(torch.zeros(*(shape or (64, 64))))
        return kept[-1]

    dist.all_gather([room(), room()], given(made(1))[0])
    dist.all_gather_into_tensor(room(128, 64), given(made(2))[0])
    dist.all_gather_coalesced([[room(), room()], [room(), room()]], given(made(3), made(4)))
    dist.gather(given(made(5))[0], [room(), room()] if first else None, 0)
    dist.scatter(room(), given(made(6), made(7)) if first else None, 0)
    dist.reduce_scatter(room(), given(made(8), made(9)))
    dist.reduce_scatter_tensor(room(32, 64), given(made(10))[0])
    dist.all_to_all_single(room(), given(made(11))[0])
    dist.all_to_all([room(), room()], given(made(12), made(13)))
    with dist._coalescing_manager():
        for seed in (14, 15):
            dist.all_gather_into_tensor(room(128, 64), given(made(seed))[0])
    with dist._coalescing_manager():
        for seed in (16, 17):
            dist.reduce_scatter_tensor(room(32, 64), given(made(seed))[0])
    for x in inputs:
        leaves(x)  # and comes back as it was made, not as it was left
    return [*inputs, *kept]
