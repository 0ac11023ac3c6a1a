"""Finds the smallest budget in which a step still fits, and what a few budgets above it cost.

    python examples/smallest_budget.py

Written like a notebook: run it cell by cell, and put your own step into the first one.
"""

# %% One training step, with everything it needs. It is run anew in every budget.
import torch
from torch import nn

import coop
from coop.sizes import format_bytes


def train() -> None:
    """Two steps: the optimizer's state comes with the first."""
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(1024, 256)).square().mean().backward()
        optimizer.step()


# %% What it takes without a limit.
with coop.budget("8GiB", device="cpu") as session:
    train()
most = session.stats().peak_bytes
print(f"without a limit: {format_bytes(most)}")


# %% Halve the interval between what fails and what fits. A failure says which budget would at least
# have passed the point where it failed, so the interval shrinks faster than by half.
def attempt(num_bytes: int) -> tuple[coop.Stats | None, int]:
    """The statistics, if it fits; else a budget below which no other can."""
    try:
        with coop.budget(num_bytes, device="cpu") as session:
            train()
    except coop.OutOfBudgetError as error:
        return None, error.shortage["sufficient_budget_bytes"]
    return session.stats(), 0


fails, fits = 0, most
while fits - fails > most / 100:
    middle = (fails + fits) // 2
    stats, at_least = attempt(middle)
    if stats is None:
        fails = middle
        print(f"{format_bytes(middle)}: does not fit; {format_bytes(at_least)} gets further")
    else:
        fits = middle
        print(f"{format_bytes(middle)}: fits, estimated overhead {stats.overhead - 1:.1%}")
print(f"the smallest budget: {format_bytes(fits)}, {fits / most:.0%} of what it takes")

# %% What a little more memory buys.
for share in (0.0, 0.25, 0.5, 0.75):
    num_bytes = int(fits + share * (most - fits))
    stats, _ = attempt(num_bytes)
    cost = f"overhead {stats.overhead - 1:.1%}, {stats.num_evictions} evictions" if stats else "-"
    print(f"{format_bytes(num_bytes)}: {cost}")
