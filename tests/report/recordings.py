"""Recordings to draw: a small real one, and a large one that is made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import coop
from coop.events import EVENT_DTYPE, EventKind
from coop.recording import Recording, SourceLine

MIB = 2**20


def train_a_little(num_steps: int = 3, batch: int = 1024) -> list[float]:
    """Some layers with dropout; returns the losses."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(8):
        layers += [torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = model(torch.randn(batch, 128)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def small_recording() -> Recording:
    """A few steps in a budget that has to evict, with one kept tensor."""
    with coop.budget("9MiB", device="cpu", events=True) as session:
        coop.keep(torch.randn(64, 1024))
        train_a_little()
        return session.recording()


def large_recording(num_blocks: int) -> Recording:
    """Blocks side by side in 250 lanes of different sizes, half of them evicted."""
    num_lanes = 250
    per_lane = num_blocks // num_lanes
    random = np.random.default_rng(0)
    sizes = random.integers(1, 64, num_lanes) * 65536
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    durations = random.exponential(1e6, (num_lanes, per_lane)).astype(np.int64) + 1000
    ends = np.cumsum(durations, axis=1)
    begins = ends - durations
    number = np.arange(num_lanes * per_lane) + 1

    def column(kind: npt.NDArray[Any] | int, clock: npt.NDArray[Any]) -> npt.NDArray[Any]:
        events = np.zeros(number.shape, dtype=EVENT_DTYPE)
        events["offset"], events["bytes"] = np.repeat(offsets, per_lane), np.repeat(sizes, per_lane)
        events["clock"], events["value"], events["kind"] = clock.ravel(), number, kind
        events["op"], events["detail"] = number % 7, number % 2
        events["amount"] = 5000
        return events

    ending = np.where(number % 2, EventKind.FREE, EventKind.EVICT)
    events = np.concatenate(
        [
            column(EventKind.ALLOCATE, begins),
            column(EventKind.OPERATOR, begins + 1),
            column(EventKind.RECIPE, begins + 1),
            column(ending, ends),
        ]
    )
    # At one instant, what leaves a block goes before what comes.
    order = np.lexsort((events["kind"] == EventKind.ALLOCATE, events["clock"]))
    stats = dict.fromkeys(coop.Stats.__dataclass_fields__, 0.0)
    stats |= {"budget_bytes": int(sizes.sum()), "peak_bytes": int(sizes.sum()), "compute_ns": 1.0}
    return Recording(
        events=events[order],
        operator_names=[f"aten::operator{index}" for index in range(7)],
        sources=[SourceLine("", "", 0, False)],
        keep_reasons=[],
        num_dropped=0,
        stats=stats,
        policy="coop",
        device="cpu",
        failures=[],
    )
