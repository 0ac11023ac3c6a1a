"""What the callbacks log: the mean of the steps since the last time."""

from __future__ import annotations

from collections.abc import Callable

from coop.progress import Step
from coop.session import Session

__all__ = ["Metrics"]

# Of each: the mean over the steps, or the newest.
MEANS = (
    "step_seconds",
    "overhead",
    "num_evictions",
    "num_replays",
    "fragmentation",
    "host_saved_bytes",
    "host_loaded_bytes",
    "host_wait_seconds",
)
NEWEST = ("held_bytes", "peak_bytes", "host_held_bytes")


class Metrics:
    """Collects the steps of a session."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._stop: Callable[[], None] | None = None

    def start(self, session: Session) -> None:
        """Listen to it."""
        self.stop()
        self._stop = session.on_step(self._steps.append)

    def stop(self) -> None:
        """Listen no more."""
        if self._stop is not None:
            self._stop()
        self._stop = None
        self._steps.clear()

    def take(self) -> dict[str, float]:
        """By name, such as `coop/overhead`; empty when no step has ended since the last time."""
        steps = list(self._steps)
        self._steps.clear()
        if not steps:
            return {}
        # Names are literal keys of Step, which mypy cannot see through a loop.
        rows = [dict(step) for step in steps]
        metrics = {f"coop/{name}": _mean([row[name] for row in rows]) for name in MEANS}
        metrics |= {f"coop/{name}": float(str(rows[-1][name])) for name in NEWEST}
        return metrics


def _mean(numbers: list[object]) -> float:
    return sum(float(str(number)) for number in numbers) / len(numbers)
