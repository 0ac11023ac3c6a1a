"""What is to be measured: one cell is one network under one configuration in one budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks import models

__all__ = ["ABLATIONS", "CONFIGURATIONS", "POLICIES", "WITHOUT", "BenchError", "Cell", "grid"]

# Where the budget comes from; benchmarks/README.md describes each.
Kind = Literal[
    "plain",
    "ratio",
    "reserved",
    "smallest",
    "budget",
    "pair",
    "traced",
    "predicted",
    "operators",
    "scan",
]

# Arguments of `coop.budget` by configuration.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "coop": {"policy": "coop"},
    "coop-paper": {"policy": "coop-paper"},
    "dtr": {"policy": "dtr"},
    "dte": {"policy": "dte"},
    "no-window": {"policy": "coop", "window": False},
    "no-partition": {"policy": "coop", "partition": False},
    "no-inplace": {"policy": "coop", "inplace": False},
}
# Torch alone. A budget is then the most that torch's allocator may reserve.
WITHOUT = ("plain", "checkpoint")
POLICIES = ("coop", "dtr", "dte")
# Coop without one of its parts; `coop-paper` is without what we added to it.
ABLATIONS = ("coop-paper", "no-window", "no-partition", "no-inplace")


class BenchError(Exception):
    """A measurement that cannot be made as asked; the text is for the user."""


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    model: str
    configuration: str  # one of CONFIGURATIONS or of WITHOUT
    kind: Kind
    ratio: float | None = None  # budget / what the kind says
    label: str | None = None  # what tells cells of kind "budget" and "pair" apart
    budget_bytes: int | None = None  # of kind "budget" and "pair"
    batch_size: int | None = None  # where it is not the network's own

    @property
    def key(self) -> str:
        """The same for the same measurement, in this run and the next."""
        parts = [self.model, self.configuration]
        if self.batch_size is not None:
            parts.insert(1, f"batch {self.batch_size}")
        if self.kind != "plain":
            parts.append(self.kind)
        if self.ratio is not None:
            parts.append(f"{self.ratio:g}")
        if self.label is not None:
            parts.append(self.label)
        return " ".join(parts)

    def identity(self) -> dict[str, Any]:
        """The fields of a row that say which cell it is; those that say nothing are left out."""
        fields = {
            "key": self.key,
            "model": self.model,
            "configuration": self.configuration,
            "kind": self.kind,
            "ratio": self.ratio,
            "label": self.label,
            "batch_size": self.batch_size,
        }
        return {name: value for name, value in fields.items() if value is not None}


def grid(
    names: Sequence[str], configurations: Sequence[str], ratios: Sequence[float], smallest: bool
) -> Iterator[Cell]:
    """All cells of a sweep, network by network; what the others are compared with comes first."""
    for model in names:
        yield Cell(model, "plain", "plain")
        if models.get(model, "tiny").can_checkpoint:
            yield Cell(model, "checkpoint", "plain")
        for ratio in ratios:
            for name in configurations:
                yield Cell(model, name, "ratio", ratio)
        if smallest:
            for name in configurations:
                yield Cell(model, name, "smallest")
