"""The line of `coop run --live`, and of `coop watch`."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from coop.status import Status, status_line

__all__ = ["LiveLine"]

# Where there is no terminal, lines go to a log: not one for every step.
LOG_SECONDS = 10.0


class LiveLine:
    """One line on stderr that is drawn again after every step; what the program prints is above."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._last = -LOG_SECONDS
        if self._console.is_terminal:
            # What goes elsewhere than to this terminal must not pass through the console.
            together = sys.stdout.isatty()
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=together,
                redirect_stderr=together,
            )
            self._live.start()

    def show(self, status: Status) -> None:
        """What is so now."""
        line = f"coop: {status_line(status)}"
        if self._live is not None:
            text = Text(line, no_wrap=True, overflow="ellipsis", style="cyan")
            self._live.update(text, refresh=True)
        elif time.monotonic() - self._last >= LOG_SECONDS:
            self._last = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()
