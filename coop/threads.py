"""What a program starts inside a budget runs inside it: threads, and tasks of thread pools."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coop._native import _C
from coop.patches import Patches

__all__ = ["ThreadsPatch"]


class _Token:
    """One thread or task; goes with it, whether it ever ran or not."""


class ThreadsPatch:
    """`Thread.start` and `ThreadPoolExecutor.submit`, and the engines that their work may use."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._lock = threading.Lock()
        self._running: weakref.WeakSet[_Token] = weakref.WeakSet()
        # Closed engines that something running may still use: an operator looks up its engine
        # once, and the budget may be left meanwhile.
        self._closed: list[_C.Engine] = []

    def enter(self) -> None:
        """A budget begins."""
        self._patches.replace(threading.Thread, "start", self._starting)
        self._patches.replace(ThreadPoolExecutor, "submit", self._submitting)

    def leave(self) -> None:
        """The budget ends."""
        self._patches.undo()

    def hold_until_done(self, engine: _C.Engine) -> None:
        """The budget is left: its engine stays until what was started inside it has ended."""
        with self._lock:
            self._closed.append(engine)
        self._drop_unused()

    def num_held(self) -> int:
        """How many closed engines something running may still use."""
        return len(self._closed)

    def _drop_unused(self) -> None:
        with self._lock:
            unused = [] if self._running else self._closed[:]
            if unused:
                self._closed.clear()
        unused.clear()  # engines end without the lock

    def _inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, inside the budget for as long as it runs."""
        token = _Token()
        with self._lock:
            self._running.add(token)

        def run(*args: Any, **kwargs: Any) -> Any:
            was_inside = _C.is_thread_enabled()
            _C.set_thread_enabled(True)
            try:
                return function(*args, **kwargs)
            finally:
                _C.set_thread_enabled(was_inside)
                self._done(token)

        return run

    def _done(self, token: _Token) -> None:
        with self._lock:
            self._running.discard(token)
        self._drop_unused()

    def _starting(self, method: Callable[..., None]) -> Callable[..., None]:
        """`Thread.start`, which a thread inside the budget calls for one that is then inside."""

        @functools.wraps(method)
        def start(thread: threading.Thread) -> None:
            if not _C.is_thread_enabled():
                method(thread)
                return
            run = self._inside(thread.run)

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

    def _submitting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`ThreadPoolExecutor.submit`: the pool's threads may be older than the budget."""

        @functools.wraps(method)
        def submit(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            if _C.is_thread_enabled():
                function = self._inside(function)
            return method(pool, function, *args, **kwargs)

        return submit
