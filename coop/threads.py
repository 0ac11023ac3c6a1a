"""What a program starts inside a budget runs inside it: threads, and tasks of thread pools."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from coop._native import _C

__all__ = ["keep_until_done", "starting", "submitting"]


class _Token:
    """One thread or task; goes with it, whether it ever ran or not."""


_lock = threading.Lock()
_running: weakref.WeakSet[_Token] = weakref.WeakSet()
# Closed engines that something running may still use: an operator looks up its engine once, and
# the budget may be left meanwhile.
_kept: list[Any] = []


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, inside the budget for as long as it runs."""
    token = _Token()
    with _lock:
        _running.add(token)

    def run(*args: Any, **kwargs: Any) -> Any:
        was_inside = _C.is_thread_enabled()
        _C.set_thread_enabled(True)
        try:
            return function(*args, **kwargs)
        finally:
            _C.set_thread_enabled(was_inside)
            _done(token)

    return run


def _done(token: _Token) -> None:
    with _lock:
        _running.discard(token)
    _drop_unused()


def _drop_unused() -> None:
    with _lock:
        unused = [] if _running else _kept[:]
        if unused:
            _kept.clear()
    unused.clear()  # engines end without the lock


def keep_until_done(engine: Any) -> None:
    """The budget is left: its engine stays until what was started inside it has ended."""
    with _lock:
        _kept.append(engine)
    _drop_unused()


def starting(method: Callable[..., None]) -> Any:
    """`Thread.start`, which a thread inside the budget calls for one that is then inside too."""

    @functools.wraps(method)
    def start(thread: threading.Thread) -> None:
        if not _C.is_thread_enabled():
            method(thread)
            return
        run = _inside(thread.run)

        def run_once() -> None:
            del thread.run
            run()

        thread.run = run_once  # type: ignore[method-assign]
        try:
            method(thread)
        except BaseException:
            thread.__dict__.pop("run", None)
            raise

    return start


def submitting(method: Callable[..., Any]) -> Any:
    """`ThreadPoolExecutor.submit`: the pool's threads may be older than the budget."""

    @functools.wraps(method)
    def submit(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if _C.is_thread_enabled():
            function = _inside(function)
        return method(pool, function, *args, **kwargs)

    return submit
