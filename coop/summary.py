"""What a run needed, got and cost, in five lines: for the end of `coop run` and for the report."""

from __future__ import annotations

from coop.sizes import format_budget, format_bytes
from coop.stats import Stats

__all__ = ["budget_flag", "next_better", "summarize"]


def summarize(
    stats: Stats,
    *,
    device: str,
    policy: str = "coop",
    seconds: float = 0.0,
    most_bytes: int = 0,
    enough_bytes: int = 0,
    report: str = "",
) -> list[str]:
    """The five lines.

    Args:
        stats: of the whole run.
        device: where the budget is.
        policy: what chose the evictions.
        seconds: how long it took; 0 is not known.
        most_bytes: all memory that the device has; 0 is not known.
        enough_bytes: if it ran out of budget, a budget that passes that point.
        report: where it is; empty when there is none.
    """
    where = "the CPU" if device == "cpu" else device
    by = "" if policy == "coop" else f" with the policy {policy}"
    more = "more than " if enough_bytes else "about " if stats.needed_is_estimate else ""
    return [
        f"needed  {more}{format_bytes(stats.needed_bytes)} to run without evicting anything",
        f"got     {format_bytes(stats.budget_bytes)} on {where}{by}; "
        f"it held {format_bytes(stats.peak_bytes)} at most",
        f"cost    {_cost(stats)}{_steps(stats, seconds)}",
        f"next    {next_better(stats, most_bytes, enough_bytes)}",
        f"report  {report or 'none (--report FILE writes one)'}",
    ]


def next_better(stats: Stats, most_bytes: int = 0, enough_bytes: int = 0) -> str:
    """The budget, or what else, that would help most."""
    if enough_bytes:
        if 0 < most_bytes < enough_bytes:
            return (
                f"a smaller batch: only {format_bytes(enough_bytes)} would pass the point where it "
                f"ran out, and there are {format_bytes(most_bytes)} here"
            )
        return f"{budget_flag(enough_bytes)} passes the point where it ran out"
    flag = budget_flag(stats.needed_bytes)
    if stats.num_evictions == 0:
        return f"all of it fits: {flag} is enough, and `coop plan` says what less would cost"
    if 0 < most_bytes < stats.needed_bytes:
        if stats.budget_bytes < 0.9 * most_bytes:
            return f"up to {budget_flag(most_bytes, round_up=False)} is here, and each byte helps"
        return "a smaller batch: this is nearly all the memory that there is here"
    nothing = "evicts next to nothing" if stats.needed_is_estimate else "evicts nothing"
    return f"{flag} {nothing}; a budget between the two recomputes less"


def budget_flag(num_bytes: int, *, round_up: bool = True) -> str:
    """As one may type it."""
    text = format_budget(num_bytes) if round_up else format_bytes(num_bytes)
    return f"--budget {text.replace(' ', '')}"


def _cost(stats: Stats) -> str:
    if stats.num_evictions == 0:
        return "nothing: no value was evicted"
    parts = [f"{_count(stats.num_replays, 'operator')} run again"]
    if stats.num_saves:
        parts.append(f"{format_bytes(stats.saved_bytes)} copied to main memory")
    if stats.host_bytes:
        parts.append(
            f"{format_bytes(stats.host_saved_bytes)} copied out and "
            f"{format_bytes(stats.host_loaded_bytes)} back (at most "
            f"{format_bytes(stats.host_peak_bytes)} of --host at once; about "
            f"{stats.host_wait_ns / 1e9:.2g} s waited)"
        )
    evicted = format_bytes(stats.evicted_bytes)
    parts.append(f"{_count(stats.num_evictions, 'eviction')} of {evicted}")
    return f"about {stats.overhead - 1:.1%} more compute (estimated): {', '.join(parts)}"


def _steps(stats: Stats, seconds: float) -> str:
    if not seconds:
        return ""
    if not stats.num_steps:
        return f"; {seconds:.1f} s"
    return f"; {_count(stats.num_steps, 'step')} in {seconds:.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
