"""`session.trace`: what a program does to memory, for the planner and the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coop._native import _C
from coop.trace import Header, write_recorded

__all__ = ["SessionTrace"]


class SessionTrace:
    """Records one trace at a time."""

    def __init__(self, engine: _C.Engine, device: str, alignment: int) -> None:
        self._engine: _C.Engine | None = engine
        self._header = Header(
            device=device, alignment=alignment, header_bytes=engine.header_bytes()
        )
        self._is_recording = False
        self._entries = b""  # what was recorded, once the budget is left

    def start(self, *, source_lines: bool = False) -> None:
        """From now on, remember what the program does to memory; see `coop.record`.

        With `source_lines`, every operator comes with the line of your code that called it.
        """
        if self._engine is None:
            raise RuntimeError("this budget was left: there is nothing more to record")
        self._is_recording = True
        self._engine.start_recording(source_lines)

    def save(self, path: str | Path, comment: str = "") -> None:
        """Write the trace since `start` and end it: `python -m coop plan` reads it."""
        if not self._is_recording:
            raise RuntimeError("no trace was recorded: call session.trace.start() before")
        self._is_recording = False
        entries = self._entries if self._engine is None else self._engine.stop_recording()
        write_recorded(path, replace(self._header, comment=comment), entries)

    def drop(self) -> None:
        """End the trace since `start` without writing it."""
        self._is_recording = False
        self._entries = b""
        if self._engine is not None:
            self._engine.stop_recording()

    def finish(self) -> None:
        """The budget ends: remembers what was recorded."""
        if self._engine is not None:
            self._entries = self._engine.stop_recording()

    def let_go(self) -> None:
        """The engine is closed."""
        self._engine = None
