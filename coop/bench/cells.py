"""What is to be measured: one cell is one network under one configuration in one budget."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "ABLATIONS",
    "CONFIGURATIONS",
    "POLICIES",
    "BenchError",
    "Cell",
    "grid",
    "workloads",
]

Kind = Literal["plain", "ratio", "smallest"]

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
POLICIES = ("coop", "dtr", "dte")
# Coop without one of its parts; `coop-paper` is without what we added to it.
ABLATIONS = ("coop-paper", "no-window", "no-partition", "no-inplace")


class BenchError(Exception):
    """A sweep that cannot be run as asked; the text is for the user."""


@dataclass(frozen=True)
class Cell:
    """One measurement. `ratio` is budget / peak without a budget, of kind `ratio` only."""

    model: str
    configuration: str  # one of CONFIGURATIONS, or "plain" or "checkpoint" for kind "plain"
    kind: Kind
    ratio: float | None = None

    @property
    def key(self) -> str:
        """The same for the same measurement, in this sweep and the next."""
        ratio = "" if self.ratio is None else f" {self.ratio:g}"
        kind = "" if self.kind == "plain" else f" {self.kind}"
        return f"{self.model} {self.configuration}{kind}{ratio}"


def grid(
    models: Sequence[str], configurations: Sequence[str], ratios: Sequence[float], smallest: bool
) -> Iterator[Cell]:
    """All cells, network by network; what the others are compared with comes first."""
    for model in models:
        yield Cell(model, "plain", "plain")
        if workloads().get(model, "tiny").block_types:
            yield Cell(model, "checkpoint", "plain")
        for ratio in ratios:
            for name in configurations:
                yield Cell(model, name, "ratio", ratio)
        if smallest:
            for name in configurations:
                yield Cell(model, name, "smallest")


def workloads() -> Any:
    """The networks, which are no part of the installed package."""
    try:
        return importlib.import_module("benchmarks.models")
    except ModuleNotFoundError as error:
        if error.name not in ("benchmarks", "benchmarks.models"):
            raise
        raise BenchError(
            "the networks of the evaluation are in benchmarks/models of the repository, which is "
            "not here: run this command at the root of a checkout"
        ) from None
