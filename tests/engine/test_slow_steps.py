"""No cliff is silent: what recomputes for longer than a plain step says so, and can be stopped."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import coop


def chain(depth: int = 24) -> None:
    """One step of a deep network whose values are all the same size."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.Tanh()))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(512, 64)).sum().backward()
        optimizer.step()


def warnings_in(budget_bytes: int) -> tuple[list[warnings.WarningMessage], coop.Stats]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with coop.budget(budget_bytes) as session:
            chain()
    slow = [entry for entry in caught if issubclass(entry.category, coop.SlowStepWarning)]
    return slow, session.stats()
