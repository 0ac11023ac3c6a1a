"""The budget of a callback: training runs inside of it, the rest of the program does not."""

from __future__ import annotations

import contextlib
import sys

import torch

from coop.config import ConfigChanges, choose_device
from coop.options import from_environment
from coop.session import Session, budget, current_session, install

__all__ = ["OwnBudget"]


class OwnBudget:
    """Entered when training begins and left at its end; on a GPU from now on.

    Where the program is in a budget already (`coop run`, `coop.budget`, `coop.install`), that one
    is meant, and nothing is entered.
    """

    def __init__(
        self,
        size: int | str | None,
        device: str | torch.device | None,
        changes: ConfigChanges,
    ) -> None:
        self._size = size
        self._changes = changes
        self._device = choose_device(from_environment("device") if device is None else device)
        self._stack = contextlib.ExitStack()
        self._session: Session | None = None  # if it is ours
        if self._device.type == "cuda" and current_session() is None:
            # Torch's allocator can only be chosen before CUDA starts, and frameworks start it.
            self._session = install(size, device=self._device, **changes)

    def enter(self) -> Session:
        """What training runs in."""
        session = current_session()
        if session is None:
            inside = budget(self._size, device=self._device, **self._changes)
            session = self._session = self._stack.enter_context(inside)
        return session

    def leave(self, *, says_so: bool) -> None:
        """The end of training: what it needed, got and cost, in five lines, if the budget is ours.

        Args:
            says_so: whether this process is the one that prints.
        """
        session, self._session = self._session, None
        if session is None:
            return
        self._stack.close()
        if says_so and not from_environment("quiet"):
            for line in session.summary():
                print(f"coop: {line}", file=sys.stderr)
