"""A chain in a budget in which its backward pass recomputes for minutes; run by test_slow_steps.py.

The whole backward pass is one call of Python's, so only the engine can look for signals meanwhile.
It prints a line while it does that, and others after it was interrupted.
"""

from __future__ import annotations

import warnings

import torch

import coop

DEPTH = 8000
NUMEL = 2**14
BUDGET_BYTES = 2**19


def main() -> None:
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
            x.sum().backward()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        del x
        # All is as it was, and goes on.
        stats = session.stats()
        whole = torch.equal(kept, torch.linspace(0, 1, NUMEL).mul(2)) and leaf.grad is None
        leaf.sin().sum().backward()
        whole = whole and torch.equal(leaf.grad, torch.linspace(0, 1, NUMEL).cos())
        print("whole:", whole, "replays:", stats.num_replays, flush=True)


if __name__ == "__main__":
    main()
