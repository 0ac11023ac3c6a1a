"""What a plan says; coop/planner.py makes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coop.profiles import LINKS, Link
from coop.sizes import format_budget, format_bytes

__all__ = ["NO_ROOM", "Checkpointed", "Plan", "Point", "Room"]


@dataclass(frozen=True)
class Point:
    """One policy inside one budget."""

    policy: str
    budget_bytes: int
    fits: bool  # and recomputes for at most five steps within one
    step_ns: float  # of the last step; infinite where it does not fit
    overhead: float  # cost of the last step with recomputation / without
    num_evictions: int  # in the last step
    num_replays: int
    failure: str = ""  # why it does not fit
    host_wait_ns: float = 0  # of step_ns: waited for copies in main memory
    host_peak_bytes: int = 0  # of them, at most
    num_steps_until_steady: int = 0  # those before the first of the steps that cost as the last


@dataclass(frozen=True)
class Room:
    """For copies of what leaves."""

    host_bytes: int = 0
    link: Link = LINKS["cuda"]


NO_ROOM = Room()


@dataclass(frozen=True)
class Checkpointed:
    """The same program with `torch.utils.checkpoint`, without a budget."""

    peak_bytes: int
    step_ns: float


@dataclass(frozen=True)
class Plan:
    """The answers. Times are of the last step, when it has been repeated a few times."""

    trace: str
    device: str
    is_estimated: bool  # recorded without the hardware: temporaries are estimates
    num_operators: int
    num_steps: int
    peak_bytes: int  # held at most when nothing has to go
    needed_bytes: int  # a budget in which the first policy evicts nothing
    step_ns: float  # when nothing has to go
    points: tuple[Point, ...]  # by policy, then from the largest budget down
    smallest_bytes: dict[str, int]  # by policy: the smallest budget that fits, within 0.5%
    knee_bytes: int  # below it, the first policy gets expensive faster; 0: it fits nowhere
    checkpointed: Checkpointed | None = None
    host_bytes: int = 0  # room for copies in main memory

    def curve(self, policy: str) -> list[Point]:
        """The points of one policy, from the largest budget down."""
        return [point for point in self.points if point.policy == policy]

    @property
    def num_steps_until_steady(self) -> int:
        """Under the first policy, in any budget that fits."""
        points = self.curve(self.points[0].policy)
        return max((p.num_steps_until_steady for p in points if p.fits), default=0)

    @property
    def advice(self) -> str:
        """One sentence."""
        policy = self.points[0].policy
        told = [p for p in self.curve(policy) if p.fits and p.budget_bytes < self.needed_bytes]
        chosen = [p for p in told if p.budget_bytes in _three(told, self.knee_bytes)]
        parts = [f"nothing is evicted from {format_budget(self.needed_bytes)} on"]
        parts += [f"{format_bytes(p.budget_bytes)} at +{p.overhead - 1:.0%}" for p in chosen]
        parts.append(f"below {format_budget(self.smallest_bytes[policy])}: no")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        data = asdict(self)
        for point in data["points"]:
            if math.isinf(point["step_ns"]):
                point["step_ns"] = point["overhead"] = None
        return {**data, "advice": self.advice}


def _three(points: Sequence[Point], knee_bytes: int) -> set[int]:
    """The budgets that the advice tells: the first, the knee, the last."""
    if not points:
        return set()
    return {points[0].budget_bytes, knee_bytes, points[-1].budget_bytes}
