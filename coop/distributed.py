"""torch.distributed: what it does in C++ and on threads of its own, where operators are not seen.

Collectives themselves are operators: the engine has a table of what each of them writes, and holds
what it uses until it is done (csrc/adapter/dispatch/collectives.cc).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from coop._native import _C
from coop.patches import Patches

__all__ = ["DistributedPatch"]


def _making_roots(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, whose operators are not seen: what it makes are roots, which stay."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return _C.call_unseen(method, *args, **kwargs)

    return guarded


def _calling_back(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, whose callback may run on another thread, inside of an operator."""

    @functools.wraps(method)
    def guarded(future: Any, callback: Callable[..., Any]) -> Any:
        if not _C.is_thread_enabled():
            return method(future, callback)
        return method(future, functools.partial(_C.call_seen, callback))

    return guarded


def _beginning(method: Callable[..., Any]) -> Callable[..., Any]:
    """Collectives that follow begin later: there is no telling when one of them is done."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _C.begin_coalescing()
        return method(*args, **kwargs)

    return guarded


def _ending(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            _C.end_coalescing()

    return guarded


class DistributedPatch:
    """The reducer of `DistributedDataParallel`, callbacks of futures, and collectives put
    together."""

    def __init__(self) -> None:
        self._patches = Patches()

    def enter(self) -> None:
        """A budget begins."""
        if not torch.distributed.is_available():
            return
        c10d, future = torch._C._distributed_c10d, torch._C.Future
        reducer, group = c10d.Reducer, c10d.ProcessGroup
        # Looks at the memory of its buckets of gradients without an operator.
        self._patches.replace(reducer, "__init__", _making_roots)
        self._patches.replace(reducer, "_rebuild_buckets", _making_roots)
        self._patches.replace(future, "then", _calling_back)
        self._patches.replace(future, "add_done_callback", _calling_back)
        self._patches.replace(group, "_start_coalescing", _beginning)
        self._patches.replace(group, "_end_coalescing", _ending)

    def leave(self) -> None:
        """The budget ends."""
        self._patches.undo()
