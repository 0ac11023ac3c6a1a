"""Runs traces through the native core without memory: it decides as the engine does."""

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from coop._native import _C
from coop.profiles import LINKS, Link
from coop.sizes import LARGEST_BYTES, format_bytes
from coop.trace import Trace

__all__ = [
    "POLICIES",
    "STEADY_STEPS",
    "Options",
    "Simulation",
    "StepCost",
    "peak_without_limit",
    "simulate",
]

POLICIES = ("coop", "coop-paper", "dtr", "dte")
# After so many steps that are the same, `coop` follows the last schedule that it makes for them.
STEADY_STEPS = 10


@dataclass(frozen=True)
class Options:
    """How to decide: a policy, and the parts of Coop (dtr and dte never have them)."""

    policy: str = "coop"
    window: bool = True
    partition: bool = True
    inplace: bool = True
    alignment: int = 64
    small_bytes: int = 10 * 1024
    host_bytes: int = 0
    link: Link = LINKS["cpu"]

    def config(self, budget_bytes: int) -> "_C.Config":
        """As the native side takes it; raises `ValueError` for an unknown policy."""
        return _C.Config(
            budget_bytes,
            self.policy,
            window=self.window,
            partition=self.partition,
            inplace=self.inplace,
            alignment=self.alignment,
            small_bytes=self.small_bytes,
            host_bytes=self.host_bytes,
            link=_C.LinkProfile(**asdict(self.link)),
        )


@dataclass(frozen=True)
class StepCost:
    """What happened between the ends of two steps."""

    compute_ns: float
    replay_ns: float
    num_evictions: int
    num_replays: int
    host_wait_ns: float


@dataclass(frozen=True)
class Simulation:
    """How a trace went inside a budget."""

    trace: Trace
    options: Options
    stats: "_C.Stats"
    fitted: bool
    shortage: "_C.Shortage | None"  # None: it fitted, or was given up
    failed_entry: int  # -1: it fitted
    steps: list[StepCost]  # those that ended
    num_replays: list[int]  # by operator of the trace, in their order

    @property
    def last_step(self) -> StepCost:
        """The last step that ended; without any, everything."""
        stats = self.stats
        everything = StepCost(
            stats["compute_ns"],
            stats["replay_ns"],
            stats["num_evictions"],
            stats["num_replays"],
            stats["host_wait_ns"],
        )
        return self.steps[-1] if self.steps else everything

    @property
    def overhead(self) -> float:
        """Cost with recomputation and copies / cost without; 1.0 is no extra time."""
        stats = self.stats
        compute_ns = stats["compute_ns"]
        extra_ns = stats["replay_ns"] + stats["host_wait_ns"]
        return (compute_ns + extra_ns) / compute_ns if compute_ns else 1.0

    @property
    def failure(self) -> str:
        """What did not fit and why, with the numbers of Rule 15; empty when it fitted."""
        if self.fitted:
            return ""
        line = self.trace.native.line(self.failed_entry)
        where = f"at {self.trace.describe(self.failed_entry)}"
        shortage = self.shortage
        if shortage is None:
            return f"{self.trace.path}:{line}: given up {where}: a step recomputes too much"
        return (
            f"{self.trace.path}:{line}: out of budget {where}: "
            f"{_exactly(shortage['wanted_bytes'])} wanted, at most "
            f"{_exactly(shortage['largest_window_bytes'])} in one piece can be freed of a budget "
            f"of {_exactly(shortage['budget_bytes'])}; held are {_exactly(shortage['held_bytes'])} "
            f"(roots {_exactly(shortage['root_bytes'])}, kept "
            f"{_exactly(shortage['kept_bytes'])}, locked by the operator "
            f"{_exactly(shortage['locked_bytes'])}, its temporaries and results "
            f"{_exactly(shortage['temporary_bytes'])}); a budget of "
            f"{_exactly(shortage['sufficient_budget_bytes'])} would have passed this point"
        )

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "trace": self.trace.path,
            "policy": self.options.policy,
            "window": self.options.window,
            "partition": self.options.partition,
            "inplace": self.options.inplace,
            "fitted": self.fitted,
            "overhead": self.overhead,
            "stats": self.stats,
            "shortage": self.shortage,
            "failure": self.failure,
        }


def simulate(
    trace: Trace,
    budget_bytes: int,
    options: Options | None = None,
    *,
    most_replay: float = math.inf,
) -> Simulation:
    """Runs the trace inside the budget, until its end or until something does not fit.

    It is given up where a step recomputes for more than `most_replay` times the longest step of
    the trace.
    """
    options = options or Options()
    result = _C.simulate(trace.native, options.config(budget_bytes), most_replay)
    ends = [(0.0, 0.0, 0, 0, 0.0), *result["steps"]]
    steps = [
        StepCost(
            end[0] - begin[0],
            end[1] - begin[1],
            end[2] - begin[2],
            end[3] - begin[3],
            end[4] - begin[4],
        )
        for begin, end in pairwise(ends)
    ]
    return Simulation(
        trace,
        options,
        result["stats"],
        result["fitted"],
        result["shortage"],
        result["failed_entry"],
        steps,
        result["num_replays"],
    )


def peak_without_limit(trace: Trace) -> int:
    """The most bytes the trace ever holds when nothing has to be evicted: ratio 1."""
    unlimited = simulate(trace, LARGEST_BYTES, Options(small_bytes=0))
    if not unlimited.fitted:
        raise ValueError(f"{trace.path} does not even fit 2**50 bytes")
    return unlimited.stats["peak_bytes"]


def _exactly(num_bytes: int) -> str:
    if num_bytes < 1024:
        return f"{num_bytes} B"
    return f"{num_bytes} B ({format_bytes(num_bytes)})"
