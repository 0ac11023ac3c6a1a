"""Functions of others that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Patch", "Patches", "Wrapper"]

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class Patch(Protocol):
    """Something that is in place while a budget is active."""

    def enter(self) -> None:
        """A budget begins."""

    def leave(self) -> None:
        """The budget ends. Can be interrupted anywhere, and called again."""


class Patches:
    """What was replaced, and what was there before."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, wrap: Wrapper) -> None:
        """`owner.name` becomes `wrap(owner.name)`."""
        # Before it is replaced: an interrupt may come in between. None: it was inherited.
        self._replaced.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, wrap(getattr(owner, name)))

    def hide(self, owner: Any, name: str) -> None:
        """`owner` has no `name` of its own."""
        if name in owner.__dict__:
            self._replaced.append((owner, name, owner.__dict__[name]))
            delattr(owner, name)

    def undo(self) -> None:
        """Everything is as it was. Can be interrupted anywhere, and called again."""
        while self._replaced:
            owner, name, before = self._replaced[-1]
            if before is not None:
                setattr(owner, name, before)
            elif name in owner.__dict__:
                delattr(owner, name)
            self._replaced.pop()
