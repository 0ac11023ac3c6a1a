"""Random programs with collectives: the same operators in every process, with other numbers.

A program is made from a seed alone, so all processes run the same collectives in the same order.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SIZE = 64
NUM_OPERATORS = 40


class _Machine:
    """Values, and collectives that were begun and not waited for."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        rank, size = dist.get_rank(), dist.get_world_size()
        self.rank, self.size = rank, size
        start = torch.arange(SIZE * SIZE, dtype=torch.float32).reshape(SIZE, SIZE)
        self.values = [(start * (i + 2) + rank).sin() for i in range(3)]
        self.weight = (start * 0.01).cos().div(SIZE).requires_grad_()
        # A value is in use until its Work is waited for: its number, and the Work.
        self.running: list[tuple[set[int], Any, list[Tensor]]] = []

    def pick(self) -> int:
        """A value that no collective uses."""
        while True:
            used = set().union(*(each for each, _, _ in self.running))
            if free := [i for i in range(len(self.values)) if i not in used]:
                return self.choose.choice(free)
            self.wait()

    def add(self, value: Tensor) -> int:
        self.values.append(value)
        if len(self.values) > 12:
            used = set().union(*(each for each, _, _ in self.running))
            free = [i for i in range(len(self.values) - 1) if i not in used]
            self.values[self.choose.choice(free)] = self.values[-1].cos()
        return len(self.values) - 1

    def compute(self) -> None:
        x, y = self.values[self.pick()], self.values[self.pick()]
        kind = self.choose.randrange(5)
        if kind == 0:
            self.add((x * 1.5 + y).tanh())
        elif kind == 1:
            self.add((x @ y / SIZE).sin())
        elif kind == 2:
            self.values[self.pick()].mul_(0.5).add_(0.25)
        elif kind == 3:
            with torch.enable_grad():
                hidden = (x @ self.weight).tanh()
                hidden.mul(2).sin().mean().backward()
        else:
            self.add(x[: SIZE // 2].repeat(2, 1) + 1)

    def communicate(self) -> None:
        kind = self.choose.randrange(7)
        number = self.pick()
        x = self.values[number]
        used, held = {number}, [x]
        if kind == 0:
            work = dist.all_reduce(x, async_op=True)
        elif kind == 1:
            work = dist.broadcast(x, self.choose.randrange(self.size), async_op=True)
        elif kind == 2:
            whole = torch.empty(self.size * SIZE, SIZE)
            work = dist.all_gather_into_tensor(whole, x, async_op=True)
            held.append(whole)
        elif kind == 3:
            parts = [torch.zeros_like(x) for _ in range(self.size)]
            work = dist.all_gather(parts, x, async_op=True)
            held += parts
        elif kind == 4:
            part = torch.empty(SIZE // self.size, SIZE)
            work = dist.reduce_scatter_tensor(part, x, async_op=True)
            held.append(part)
        elif kind == 5:
            other = torch.empty_like(x)
            work = dist.all_to_all_single(other, x, async_op=True)
            held.append(other)
        else:
            received = torch.empty_like(x)
            sending = dist.isend(x, (self.rank + 1) % self.size)
            work = dist.irecv(received, (self.rank - 1) % self.size)
            self.running.append((used, sending, []))
            held.append(received)
        self.running.append((used, work, held))
        if self.choose.random() < 0.4:
            self.wait()

    def wait(self) -> None:
        """For one of them; what it made is a value from then on."""
        _, work, held = self.running.pop(self.choose.randrange(len(self.running)))
        work.wait()
        for made in held[1:2]:
            part = made.reshape(-1)[: SIZE * SIZE // self.size]
            self.add(part.repeat(self.size).reshape(SIZE, SIZE))

    def run(self) -> list[Tensor]:
        for _ in range(NUM_OPERATORS):
            if self.running and self.choose.random() < 0.2:
                self.wait()
            elif self.choose.random() < 0.25 and len(self.running) < 4:
                self.communicate()
            else:
                self.compute()
        while self.running:
            self.wait()
        gradient = [] if self.weight.grad is None else [self.weight.grad]
        return [*self.values, *gradient]


def random_program(seed: int) -> list[Tensor]:
    with torch.no_grad():
        return _Machine(seed).run()
