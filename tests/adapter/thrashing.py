"""A chain in a budget in which its backward pass recomputes for minutes; run by test_slow_steps.py.

The whole backward pass is one call of Python's, so only the engine can look for signals meanwhile.
It prints a line when it is busy with that, and others after it was interrupted. With the
argument "elsewhere" the main thread waits in C++ meanwhile, as it does for the operators of a GPU:
passes inside of passes run on threads of autograd's from a depth of 60 on.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from typing import Any

import torch

import coop

DEPTH = 8000
NUMEL = 2**14
BUDGET_BYTES = 2**19


class Inside(torch.autograd.Function):
    """Its backward pass runs another one, until the last runs `x.backward()`."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, hidden: list[Any], depth: int) -> torch.Tensor:
        (ctx.x,), ctx.depth = hidden, depth
        return leaf.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.enable_grad():  # type: ignore[no-untyped-call]
            if ctx.depth == 0:
                is_main = threading.current_thread() is threading.main_thread()
                print("main thread:", is_main, flush=True)
                ctx.x.backward()
            else:
                nest(ctx.x, ctx.depth - 1)
        return *gradients, None, None


def nest(x: torch.Tensor, depth: int) -> None:
    """A backward pass, with so many between it and that of `x`."""
    out: torch.Tensor = Inside.apply(  # type: ignore[no-untyped-call]
        torch.ones(1, requires_grad=True), [x], depth
    )
    out.sum().backward()


def main(elsewhere: bool = False) -> None:
    """Trains until it is interrupted."""

    def show(message: Warning | str, *_: object) -> None:
        print(f"warned: {message}", flush=True)

    warnings.showwarning = show  # type: ignore[assignment]
    with coop.budget(BUDGET_BYTES, device="cpu") as session:
        leaf = torch.linspace(0, 1, NUMEL, requires_grad=True)
        kept = leaf.detach().mul(2)
        x: torch.Tensor = leaf
        for _ in range(DEPTH):
            x = x.sin()
        try:
            if elsewhere:
                nest(x.sum(), 70)
            else:
                x.sum().backward()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            time.sleep(0)  # whatever else is raised comes here
        del x
        # All is as it was, and goes on.
        stats = session.stats()
        whole = torch.equal(kept, torch.linspace(0, 1, NUMEL).mul(2)) and leaf.grad is None
        leaf.sin().sum().backward()
        whole = whole and torch.equal(leaf.grad, torch.linspace(0, 1, NUMEL).cos())
        print("whole:", whole, "replays:", stats.num_replays, flush=True)


if __name__ == "__main__":
    main("elsewhere" in sys.argv)
