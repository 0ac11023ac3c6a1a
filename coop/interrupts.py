"""Ctrl-C in a backward pass that recomputes on autograd's threads: Note [Interrupts of a pass]."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from coop._native import _C
from coop.patches import Patches

__all__ = ["InterruptsPatch"]


class InterruptsPatch:
    """SIGINT is seen by those who replay, wherever they run."""

    def __init__(self) -> None:
        self._patches = Patches()

    def enter(self) -> None:
        """A budget begins."""
        _C.watch_interrupts()
        self._patches.replace(torch.autograd, "_engine_run_backward", _telling_of_passes)

    def leave(self) -> None:
        """The budget ends."""
        self._patches.undo()
        _C.stop_watching_interrupts()


def _telling_of_passes(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() != -1:  # a pass inside of one
            return run(*args, **kwargs)
        _C.begin_pass()
        try:
            return run(*args, **kwargs)
        finally:
            _C.end_pass()  # runs the handlers of signals that have come

    return run_backward
