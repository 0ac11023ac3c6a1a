"""torch.distributed: what it does in C++ and on threads of its own, where operators are not seen.

Collectives themselves are operators, and the engine knows what becomes of their tensors (Rule 9).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from coop._native import _C

__all__ = ["guard", "release"]

_replaced: list[tuple[Any, str, Any]] = []


def _making_roots(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, whose operators are not seen: what it makes are roots, which stay."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        return _C.call_unseen(method, *args, **kwargs)

    return guarded


def _calling_back(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, whose callback may run on another thread, inside of an operator."""

    def guarded(future: Any, callback: Callable[..., Any]) -> Any:
        if not _C.is_thread_enabled():
            return method(future, callback)
        return method(future, functools.partial(_C.call_seen, callback))

    return guarded


def _methods() -> list[tuple[Any, str, Callable[..., Any]]]:
    if not torch.distributed.is_available():
        return []
    reducer, future = torch._C._distributed_c10d.Reducer, torch._C.Future
    return [
        # Looks at the memory of its buckets of gradients without an operator.
        (reducer, "__init__", _making_roots),
        (reducer, "_rebuild_buckets", _making_roots),
        (future, "then", _calling_back),
        (future, "add_done_callback", _calling_back),
    ]


def guard() -> None:
    """A budget begins."""
    release()
    for owner, name, wrap in _methods():
        method = getattr(owner, name)
        _replaced.append((owner, name, method))
        setattr(owner, name, wrap(method))


def release() -> None:
    """The budget ends. Can be interrupted anywhere, and called again."""
    while _replaced:
        setattr(*_replaced[-1])
        _replaced.pop()
