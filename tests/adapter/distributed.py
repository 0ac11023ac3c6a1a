"""Programs of processes that talk over gloo, and the processes that run them.

`python -m tests.adapter.distributed [--ranks 4] [NAME ...]` runs them and prints what each process
found; without names, all of them, and ends with 1 if anything is not as without a budget.
"""

from __future__ import annotations

import argparse
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

from . import distributed_parallel
from .distributed_in_flight import IN_FLIGHT
from .distributed_parallel import PARALLEL
from .distributed_programs import COLLECTIVES, TRAININGS
from .distributed_random import random_program

Program = Callable[[], list[torch.Tensor]]
RATIOS = (0.85, 0.7, 0.55)
COLLECTIVES |= IN_FLIGHT
TRAININGS |= PARALLEL
NUM_RANDOM = 200
FOR_TWO = {"tensor parallel", "sequence parallel"}
PATIENCE_S = 1200  # for a program that hangs: far more than any takes


def random_named(name: str) -> Program | None:
    """`random 7` is a program too."""
    kind, _, seed = name.partition(" ")
    return (lambda: random_program(int(seed))) if kind == "random" else None


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def collective(name: str) -> dict[str, Any]:
    """Plain; where all that can be is evicted after every operator; and in quiet steps."""
    program = random_named(name) or COLLECTIVES[name]
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
    peak_bytes = session.stats().peak_bytes  # every process has its own
    found: dict[str, Any] = {"ample": _same(plain, ample)}
    for ratio in distributed_parallel.RATIOS if name in PARALLEL else RATIOS:
        with coop.budget(int(peak_bytes * ratio), device="cpu") as session:
            got = program()
        found[f"{ratio}"] = _same(plain, got)
        found[f"{ratio} evicts"] = session.stats().num_evictions > 0
    return found


def run(name: str) -> dict[str, Any]:
    return training(name) if name in TRAININGS else collective(name)


def serve(rank: int, size: int, store: str, orders: Connection) -> None:
    """One of the processes: runs what it is told, until it is told nothing more."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=PATIENCE_S / 2),
    )
    while (name := orders.recv()) is not None:
        try:
            orders.send(run(name))
        except BaseException:
            orders.send(traceback.format_exc())
            return
    dist.destroy_process_group()


class Ranks:
    """Processes with a process group of their own. After a failure there are new ones."""

    def __init__(self, folder: Path, size: int = 2) -> None:
        self._folder, self._size = folder, size
        self._processes: list[Any] = []
        self._orders: list[Connection] = []
        self._num_started = 0

    def _start(self) -> None:
        self._num_started += 1
        store = str(self._folder / f"store{self._num_started}")
        context = multiprocessing.get_context("spawn")
        for rank in range(self._size):
            ours, theirs = context.Pipe()
            arguments = (rank, self._size, store, theirs)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._orders.append(ours)

    def run(self, name: str) -> list[Any]:
        """What each of them found."""
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


def start(folder: Path, size: int = 2) -> Iterator[Ranks]:
    ranks = Ranks(folder, size)
    try:
        yield ranks
    finally:
        ranks.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("names", metavar="NAME", nargs="*")
    args = parser.parse_args(arguments)
    # Those with two parts are for two processes.
    all_names = [*(COLLECTIVES if args.ranks == 2 else ()), *TRAININGS]
    if args.ranks > 2:
        # On four processes nearly all of these small ones is fixed: they do not fit 90%.
        all_names = [name for name in all_names if name not in FOR_TWO]
    all_names += [f"random {seed}" for seed in range(NUM_RANDOM)]
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        for ranks in start(Path(temporary), args.ranks):
            for name in args.names or all_names:
                found = ranks.run(name)
                right = all(isinstance(each, dict) and all(each.values()) for each in found)
                wrong += not right
                print(name, "right" if right else "WRONG", flush=True)
                if args.names or not right:
                    print(*found, sep="\n  ", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
