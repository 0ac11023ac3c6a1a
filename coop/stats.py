"""What a budget has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from coop.errors import warn_of_old_name

__all__ = ["Stats"]


@dataclass(frozen=True)
class Stats:
    """What happened inside a budget so far. Times are estimated operator costs unless measured."""

    budget_bytes: int
    held_bytes: int
    peak_bytes: int
    needed_bytes: int  # a budget in which nothing would have been evicted
    needed_is_estimate: bool  # a little may be missing: see docs/reliability.md
    free_bytes: int
    largest_free_bytes: int
    num_operators: int
    num_replays: int
    num_evictions: int
    evicted_bytes: int
    num_searches: int
    search_ns: int
    searched_blocks: int
    num_forced: int
    fragmentation: float
    num_copies: int
    copied_bytes: int
    num_retries: int
    moved_bytes: int
    num_saves: int
    saved_bytes: int
    num_host_saves: int
    host_saved_bytes: int
    num_host_loads: int
    host_loaded_bytes: int
    num_host_refusals: int
    host_wait_ns: float
    host_held_bytes: int
    host_peak_bytes: int
    host_bytes: int
    num_steps: int
    num_schedules: int
    num_followed: int
    num_left: int
    compute_ns: float
    replay_ns: float
    num_recipes: int
    num_values: int
    num_blocks: int

    @property
    def overhead(self) -> float:
        """Cost of all operators and copies over the cost of what the program asked for."""
        extra_ns = self.replay_ns + self.host_wait_ns
        return 1 + extra_ns / self.compute_ns if self.compute_ns else 1.0

    @property
    def num_records(self) -> int:
        """Deprecated: the old name of `num_recipes`."""
        warn_of_old_name("Stats.num_records", "Stats.num_recipes")
        return self.num_recipes

    def as_dict(self) -> dict[str, float]:
        """All fields by name."""
        return asdict(self)
