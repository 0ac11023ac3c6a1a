"""The corners of PyTorch that a training program may reach into, one short program each."""

from . import (
    corners_autograd,
    corners_named_writes,
    corners_random,
    corners_runtime,
    corners_writes,
)
from .outcome import Registry

CORNERS = Registry(
    corners_autograd.CORNERS
    | corners_writes.CORNERS
    | corners_named_writes.CORNERS
    | corners_random.CORNERS
    | corners_runtime.CORNERS
)
