"""Higher-order operators (`flex_attention`, `cond`, `scan`): our dispatch keys are not theirs.

Torch's dispatcher finds out by itself that an operator falls through a key. Python's, for operators
that take functions, looks for a kernel at each key that the thread includes. What such an operator
is made of comes to us by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from coop.patches import Patches

__all__ = ["HigherOrderPatch"]


class HigherOrderPatch:
    """`torch._ops.key_extractor`, by which Python's dispatcher finds keys, without ours."""

    def __init__(self) -> None:
        self._patches = Patches()
        keys = torch._C._dispatch_keyset_full()
        for name in ("Fake", "TESTING_ONLY_GenericMode"):
            key = torch._C._parse_dispatch_key(name)
            assert key is not None
            keys = keys.remove(key)
        self._others = keys

    def enter(self) -> None:
        """A budget begins."""
        self._patches.replace(torch._ops, "key_extractor", self._extracting)

    def leave(self) -> None:
        """The budget ends."""
        self._patches.undo()

    def _extracting(self, extract: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(extract)
        def key_extractor(tensors: Any, key_mask: Any) -> Any:
            return extract(tensors, key_mask & self._others)

        return key_extractor
