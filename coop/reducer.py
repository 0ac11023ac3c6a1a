"""The buckets of DistributedDataParallel: gradients that torch's C++ copies together and reduces.

The reducer looks at a bucket's memory without an operator, so a bucket must never be evicted. What
is made while interception is off is a root: it counts, and it stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["guard", "release"]

_MAKES_BUCKETS = ("__init__", "_rebuild_buckets")

_replaced: list[tuple[str, Any]] = []


def _unseen(method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        ours = torch._C._dispatch_key_parse("Fake")
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(ours)):
            return method(*args, **kwargs)

    return guarded


def guard() -> None:
    """A budget begins."""
    release()
    if not torch.distributed.is_available():
        return
    for name in _MAKES_BUCKETS:
        method = getattr(torch.distributed.Reducer, name)
        _replaced.append((name, method))
        setattr(torch.distributed.Reducer, name, _unseen(method))


def release() -> None:
    """The budget ends. Can be interrupted anywhere, and called again."""
    while _replaced:
        name, method = _replaced[-1]
        setattr(torch.distributed.Reducer, name, method)
        _replaced.pop()
