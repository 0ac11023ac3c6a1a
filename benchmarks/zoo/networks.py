"""The networks of the zoo, and which of them policies may be tuned on.

Two halves, by family: what is learned on one half is judged by the other, which is only reported.
No family is in both. The split was made before any policy was tried on the second half, and stays
as it is: a network that is added goes where its family is, and a family that was looked at while
tuning goes to the first half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks import models
from benchmarks.models.workload import Workload

from . import diffusion, language, perception, relations, sequences

Half = Literal["tune", "judge"]
HALVES: tuple[Half, ...] = ("tune", "judge")


@dataclass(frozen=True)
class Network:
    """A network of the zoo; nothing is built until `make` is called and its model is made."""

    name: str
    family: str
    half: Half
    make: Callable[[], Workload]
    fused: bool = True  # AdamW in one operator; else what torch does by default on a GPU


# The paper's eight and its extras: all that there is was tuned on them.
PAPER = {
    "resnet": ("resnet50", "resnet152"),
    "inception": ("inception_v3",),
    "unet": ("unet",),
    "swin": ("swin",),
    "bert": ("bert_large",),
    "gpt": ("gpt3",),
    "lstm": ("bilstm", "lstm"),
    "spos": ("spos",),
    "densenet": ("densenet121",),
    "treelstm": ("treelstm",),
}

Families = Mapping[str, tuple[Callable[[], Workload], ...]]
_MODULES = (language, perception, diffusion, sequences, relations)
TUNED: tuple[Families, ...] = tuple(module.TUNED for module in _MODULES)
JUDGED: tuple[Families, ...] = tuple(module.JUDGED for module in _MODULES)


def _paper() -> list[Network]:
    return [
        Network(name, family, "tune", partial(models.get, name, "paper"), fused=False)
        for family, names in PAPER.items()
        for name in names
    ]


def _half(half: Half, tables: tuple[Families, ...]) -> list[Network]:
    return [
        Network(make.__name__, family, half, make)
        for families in tables
        for family, makers in families.items()
        for make in makers
    ]


NETWORKS: dict[str, Network] = {
    network.name: network for network in (*_paper(), *_half("tune", TUNED), *_half("judge", JUDGED))
}


def chosen(names: list[str], half: Half | None) -> list[Network]:
    """Those of the names, or all; of one half, or both. Raises `ValueError` for an unknown name."""
    for name in names:
        if name not in NETWORKS:
            raise ValueError(f"no network named {name!r}; there are: {', '.join(NETWORKS)}")
    among = [NETWORKS[name] for name in names] if names else list(NETWORKS.values())
    return [network for network in among if half in (None, network.half)]
