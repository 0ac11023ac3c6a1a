"""torchvision's names, for the time in which a package (timm) is imported that wants them.

The torchvision of PyPI is built for torch with CUDA, and would replace the torch that is here. timm
takes transforms, datasets and one norm from it when it is imported; the network, the loss, the
optimizer and the mixup that are trained here use none of them.
"""

from __future__ import annotations

import enum
import importlib
import sys
from types import ModuleType

MODULES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.models.feature_extraction",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
)


class InterpolationMode(enum.Enum):
    """timm makes tables of its members."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class NamesOnly(ModuleType):
    """Has a class of every name; an object of one is an error."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Unusable,), {})
        setattr(self, name, made)
        return made


class Unusable:
    """A name of torchvision's that no program here may use."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise NotImplementedError(f"torchvision's {type(self).__name__} is not there")


def import_package(package: str) -> ModuleType:
    """The package itself; the stand-in is there only if torchvision is not, and only meanwhile."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
    for name in MODULES:
        module = sys.modules[name] = NamesOnly(name)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    vars(sys.modules["torchvision.transforms.functional"])["InterpolationMode"] = InterpolationMode
    try:
        return importlib.import_module(package)
    finally:
        for name in MODULES:  # others look whether torchvision is there
            del sys.modules[name]
