"""Other contents for memory that nobody has written: what reads it varies in plain torch too."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_M_PERTURB = -6  # of glibc's mallopt
FILLS = (1, 165, 255, 0, 127, 254)


@contextlib.contextmanager
def perturbed_malloc(fill: int) -> Iterator[None]:
    """What malloc gives is filled with a byte that follows from `fill`; 0: left as it was."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):  # not glibc
        yield
        return
    libc.mallopt(_M_PERTURB, fill)
    try:
        yield
    finally:
        libc.mallopt(_M_PERTURB, 0)
