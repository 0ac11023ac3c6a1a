"""What each step cost, as a dictionary: for TensorBoard, W&B, or a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypedDict

__all__ = ["Step", "StepCallback", "StepMeter"]


class Step(TypedDict):
    """One step: from the end of one optimizer step to the end of the next."""

    step: int
    step_seconds: float  # wall time
    overhead: float  # estimated cost of all operators and copies over what the program asked for
    num_operators: int
    num_replays: int
    num_evictions: int
    evicted_bytes: int
    saved_bytes: int  # copied to main memory, after quiet steps
    host_saved_bytes: int  # copied to the room for copies
    host_loaded_bytes: int  # and back
    host_wait_seconds: float  # for these copies: estimated
    host_held_bytes: int  # now
    num_searches: int
    search_seconds: float
    num_schedules: int  # made at its end
    num_followed: int  # 1: it went by a schedule to its end
    num_left: int  # 1: it left one on the way
    fragmentation: float  # mean of free bytes / budget over this step's forced allocations
    held_bytes: int  # now
    peak_bytes: int  # so far
    needed_bytes: int  # so far: a budget in which nothing would have been evicted
    needed_is_estimate: bool
    budget_bytes: int


StepCallback = Callable[[Step], object]


class StepMeter:
    """Differences between the statistics of one step and the next."""

    def __init__(self, stats: dict[str, float]) -> None:
        self._last = stats
        self._last_seconds = time.perf_counter()

    def measure(self, stats: dict[str, float]) -> Step:
        """The step that ends now."""
        last, self._last = self._last, stats
        now = time.perf_counter()
        seconds, self._last_seconds = now - self._last_seconds, now

        def more(name: str) -> float:
            return stats[name] - last[name]

        num_forced = more("num_forced")
        wasted = stats["fragmentation"] * stats["num_forced"]
        wasted -= last["fragmentation"] * last["num_forced"]
        compute_ns = more("compute_ns")
        return Step(
            step=int(stats["num_steps"]),
            step_seconds=seconds,
            overhead=1 + (more("replay_ns") + more("host_wait_ns")) / compute_ns
            if compute_ns
            else 1.0,
            num_operators=int(more("num_operators")),
            num_replays=int(more("num_replays")),
            num_evictions=int(more("num_evictions")),
            evicted_bytes=int(more("evicted_bytes")),
            saved_bytes=int(more("saved_bytes")),
            host_saved_bytes=int(more("host_saved_bytes")),
            host_loaded_bytes=int(more("host_loaded_bytes")),
            host_wait_seconds=more("host_wait_ns") / 1e9,
            host_held_bytes=int(stats["host_held_bytes"]),
            num_searches=int(more("num_searches")),
            search_seconds=more("search_ns") / 1e9,
            num_schedules=int(more("num_schedules")),
            num_followed=int(more("num_followed")),
            num_left=int(more("num_left")),
            fragmentation=wasted / num_forced if num_forced else 0.0,
            held_bytes=int(stats["held_bytes"]),
            peak_bytes=int(stats["peak_bytes"]),
            needed_bytes=int(stats["needed_bytes"]),
            needed_is_estimate=bool(stats["needed_is_estimate"]),
            budget_bytes=int(stats["budget_bytes"]),
        )
