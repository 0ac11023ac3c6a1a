"""What is to be measured: one cell is one network under one configuration in one budget."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = [
    "ABLATIONS",
    "CONFIGURATIONS",
    "PLAIN",
    "BenchError",
    "Cell",
    "grid",
    "workloads",
]

Kind = Literal["plain", "ratio", "smallest"]

# Rows that are no policies of ours.
PLAIN = ("plain", "checkpoint")

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
# Coop without one of its parts; `coop-paper` is without what we added to it.
ABLATIONS = ("coop-paper", "no-window", "no-partition", "no-inplace")


class BenchError(Exception):
    """A sweep that cannot be run as asked; the text is for the user."""


@dataclass(frozen=True)
class Cell:
    """One measurement. `ratio` is budget / peak without a budget; None where nothing is limited."""

    model: str
    size: str
    device: str
    configuration: str
    kind: Kind
    ratio: float | None
    steps: int

    @property
    def key(self) -> str:
        """The same for the same measurement, in this sweep and the next."""
        ratio = "" if self.ratio is None else f" {self.ratio:g}"
        return f"{self.model} {self.configuration} {self.kind}{ratio}"

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def grid(
    models: Sequence[str],
    size: str,
    device: str,
    configurations: Sequence[str],
    ratios: Sequence[float],
    smallest: bool,
    steps: int,
) -> Iterator[Cell]:
    """All cells, network by network, the plain ones first: the others are measured by them."""
    for model in models:

        def cell(
            configuration: str, kind: Kind, ratio: float | None = None, model: str = model
        ) -> Cell:
            return Cell(model, size, device, configuration, kind, ratio, steps)

        for name in PLAIN:
            yield cell(name, "plain")
        for ratio in ratios:
            for name in configurations:
                yield cell(name, "ratio", ratio)
        if smallest:
            for name in configurations:
                yield cell(name, "smallest")


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
