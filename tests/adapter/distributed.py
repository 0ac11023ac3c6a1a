"""Programs of two processes that talk over gloo, and the pair of processes that runs them.

`python -m tests.adapter.distributed NAME` runs one of them and prints what it found.
"""

from __future__ import annotations

import datetime
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import coop

from .distributed_in_flight import IN_FLIGHT
from .distributed_programs import COLLECTIVES, TRAININGS

RATIOS = (0.85, 0.7, 0.55)
COLLECTIVES |= IN_FLIGHT
PATIENCE_S = 120  # for a program that hangs: far more than any takes


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def collective(name: str) -> dict[str, Any]:
    """Plain; where all that can be is evicted after every operator; and in quiet steps."""
    program = COLLECTIVES[name]
    plain = program()
    found = {"repeats": _same(plain, program())}
    for way, settings in (("paranoid", {"paranoid": True}), ("quiet", {"quiet_after": 1})):
        with coop.budget("16MiB", device="cpu", small_bytes=0, **settings):
            got = program()
        found[way] = _same(plain, got)
    return found


def training(name: str) -> dict[str, Any]:
    """Plain, and in three budgets that evict."""
    program = TRAININGS[name]
    plain = program()
    with coop.budget("1GiB", device="cpu") as session:
        ample = program()
    peak = torch.tensor(session.stats().peak_bytes)
    dist.broadcast(peak, 0)
    found: dict[str, Any] = {"ample": _same(plain, ample)}
    for ratio in RATIOS:
        with coop.budget(int(peak.item() * ratio), device="cpu") as session:
            got = program()
        found[f"{ratio}"] = _same(plain, got)
        found[f"{ratio} evicts"] = session.stats().num_evictions > 0
    return found


def run(name: str) -> dict[str, Any]:
    return collective(name) if name in COLLECTIVES else training(name)


def serve(rank: int, store: str, orders: Connection) -> None:
    """One of the two processes: runs what it is told, until it is told nothing more."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=PATIENCE_S / 2),
    )
    while (name := orders.recv()) is not None:
        try:
            orders.send(run(name))
        except BaseException:
            orders.send(traceback.format_exc())
            return
    dist.destroy_process_group()


class Pair:
    """Two processes with a process group of their own. After a failure there are two new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[Any] = []
        self._orders: list[Connection] = []
        self._num_started = 0

    def _start(self) -> None:
        self._num_started += 1
        store = str(self._folder / f"store{self._num_started}")
        context = multiprocessing.get_context("spawn")
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._orders.append(ours)

    def run(self, name: str) -> list[Any]:
        """What each of the two found."""
        if not self._processes:
            self._start()
        for orders in self._orders:
            orders.send(name)
        found: list[Any] = []
        for orders in self._orders:
            try:
                found.append(orders.recv() if orders.poll(PATIENCE_S) else "it hangs")
            except EOFError:
                found.append("it died")
        if not all(isinstance(each, dict) for each in found):
            self._kill()
        return found

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._orders = [], []

    def close(self) -> None:
        for orders in self._orders:
            orders.send(None)
        for process in self._processes:
            process.join(PATIENCE_S)
        self._kill()


def pair(folder: Path) -> Iterator[Pair]:
    both = Pair(folder)
    try:
        yield both
    finally:
        both.close()


Program = Callable[[], list[torch.Tensor]]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for both in pair(Path(temporary)):
            for program_name in sys.argv[1:] or [*COLLECTIVES, *TRAININGS]:
                print(program_name, *both.run(program_name), sep="\n  ", flush=True)
