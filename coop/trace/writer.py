"""Writes traces: entry by entry, or what the extension has recorded."""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

from coop.files import write_whole

from .types import FORMAT, VERSION, Header, is_compressed

__all__ = ["MemoryStep", "Side", "TraceWriter", "write_recorded"]

Side: TypeAlias = Literal["left", "right"]
# ("output", index of the output), ("temporary", its bytes), ("free", index of the temporary)
MemoryStep: TypeAlias = tuple[Literal["output", "temporary", "free"], int]


def write_recorded(path: str | Path, header: Header, entries: bytes) -> None:
    """Writes a trace whose entries are JSON lines already, whole or not at all."""
    content = _dumped(_header_entry(header)) + entries
    write_whole(path, gzip.compress(content, 9, mtime=0) if is_compressed(path) else content)


def _header_entry(header: Header) -> dict[str, Any]:
    said = {key: value for key, value in asdict(header).items() if value != getattr(Header, key)}
    return {"format": FORMAT, "version": VERSION, **said}


def _dumped(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


class TraceWriter:
    """Writes a trace entry by entry; `read_trace` checks it. A context manager.

    What it writes depends only on the calls: the same calls give the same bytes.
    """

    def __init__(self, path: str | Path, comment: str = "") -> None:
        raw = Path(path).open("wb")  # noqa: SIM115
        self._file = gzip.GzipFile("", "wb", 9, raw, mtime=0) if is_compressed(path) else raw
        self._raw = raw  # a GzipFile does not close what it was given
        self._write(_header_entry(Header(comment)))

    def operator(
        self,
        name: str,
        cost_ns: int,
        *,
        inputs: Iterable[int] = (),
        outputs: Iterable[tuple[int, int]] = (),
        writes: Sequence[int] = (),
        overwrites: Sequence[int] = (),
        memory: Sequence[MemoryStep] = (),
        side: Side = "right",
        backward: bool = True,
        replayable: bool = True,
        undefined: bool = False,
    ) -> None:
        """An operator ran; `outputs` are (storage, bytes). Without `memory`: outputs in order."""
        entry: dict[str, Any] = {"op": name, "cost_ns": cost_ns}
        for key, value in (
            ("inputs", list(inputs)),
            ("outputs", list(outputs)),
            ("writes", writes),
            ("overwrites", overwrites),
            ("memory", memory),
        ):
            if value:
                entry[key] = value
        if side != "right":
            entry["side"] = side
        if not backward:
            entry["backward"] = False
        if not replayable:
            entry["replayable"] = False
        if undefined:
            entry["undefined"] = True
        self._write(entry)

    def root(self, storage: int, num_bytes: int) -> None:
        """A storage with content that no operator of the trace made."""
        self._write({"root": storage, "bytes": num_bytes})

    def make_root(self, storage: int) -> None:
        """How the storage was made is forgotten: a gradient was stored in `.grad` (Rule 11)."""
        self._write({"make_root": storage})

    def free(self, storage: int) -> None:
        """The storage died: its last tensor is gone."""
        self._write({"free": storage})

    def keep(self, storage: int) -> None:
        self._write({"keep": storage})

    def unkeep(self, storage: int) -> None:
        self._write({"unkeep": storage})

    def evict(self, storage: int) -> None:
        self._write({"evict": storage})

    def materialize(self, storage: int) -> None:
        self._write({"materialize": storage})

    def begin_step(self) -> None:
        """An optimizer starts to write."""
        self._write({"step": "begin"})

    def end_step(self) -> None:
        """The optimizer has ended."""
        self._write({"step": "end"})

    def close(self) -> None:
        """Ends the file; on a full disk this raises, as writing to it may."""
        try:
            self._file.close()
        finally:
            self._raw.close()

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(_dumped(entry))
