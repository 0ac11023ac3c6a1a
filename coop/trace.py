"""Traces: what a program did to memory, as JSON lines. The format is docs/trace-format.md.

`read_trace` checks a file completely and hands it to the native side; `TraceWriter` writes one.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

from coop._native import _C
from coop.sizes import LARGEST_BYTES

__all__ = ["VERSION", "MemoryStep", "Side", "Trace", "TraceError", "TraceWriter", "read_trace"]

VERSION: Final = 1
_FORMAT: Final = "coop-trace"
# Whole nanoseconds are kept in a double by the native side: exact up to 2**53.
_LARGEST: Final = 2**50
_ID: Final = "a storage's id"

Side: TypeAlias = Literal["left", "right"]
# ("output", index of the output), ("temporary", its bytes), ("free", index of the temporary)
MemoryStep: TypeAlias = tuple[Literal["output", "temporary", "free"], int]

_MEMORY_KINDS: Final = {"output": 0, "temporary": 1, "free": 2}
_OPERATOR_KEYS: Final = frozenset(
    ("op", "cost_ns", "inputs", "outputs", "writes", "overwrites", "memory", "side", "replayable")
)
_HEADER_KEYS: Final = frozenset(("format", "version", "comment"))
# Kinds of entry as csrc/core/simulator.h numbers them (TraceEntry::Kind).
_ROOT, _FREE, _PIN, _UNPIN, _EVICT, _MATERIALIZE, _BEGIN_STEP, _END_STEP, _MAKE_ROOT = range(1, 10)


class TraceError(ValueError):
    """A trace that cannot be read; names the file and, where there is one, the line."""

    def __init__(self, path: str | Path, line: int, message: str) -> None:
        """`line` counts from 1; 0 when no line is to blame."""
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")
        self.path = str(path)
        self.line = line
        self.message = message


@dataclass(frozen=True)
class Trace:
    """A checked trace."""

    path: str
    comment: str
    native: "_C.Trace"
    op_names: list[str]  # by operator number
    entry_ops: list[int]  # by entry: its operator number, -1 for other entries

    @property
    def num_operators(self) -> int:
        return sum(op >= 0 for op in self.entry_ops)

    def describe(self, entry: int) -> str:
        """What entry number `entry` is, for messages."""
        op = self.entry_ops[entry]
        return self.op_names[op] if op >= 0 else "a root"


class _Bad(Exception):
    """The line being read is wrong; becomes a TraceError."""


def _whole(value: Any, what: str, largest: int = _LARGEST) -> int:
    if type(value) is not int:
        raise _Bad(f"{what} must be a whole number, not {_shown(value)}")
    if value < 0:
        raise _Bad(f"{what} must not be negative, not {value}")
    if value > largest:
        raise _Bad(f"{what} must be at most {largest}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, int) or value < 10**30 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def _list(value: Any, what: str) -> list[Any]:
    if type(value) is not list:
        raise _Bad(f"{what} must be a list, not {_shown(value)}")
    return value


def _is_memory_step(step: Any) -> bool:
    return (
        type(step) is list and len(step) == 2 and type(step[0]) is str and step[0] in _MEMORY_KINDS
    )


@dataclass
class _Reader:
    """Checks one line after the other and adds them to the native trace."""

    native: "_C.Trace" = field(default_factory=_C.Trace)
    op_numbers: dict[str, int] = field(default_factory=dict)
    entry_ops: list[int] = field(default_factory=list)
    comment: str = ""
    # The line that defined each storage; negative, the line at which it died.
    lines: dict[int, int] = field(default_factory=dict)
    pins: dict[int, int] = field(default_factory=dict)
    in_step: bool = False

    def header(self, data: dict[str, Any]) -> None:
        if data.get("format") != _FORMAT:
            raise _Bad(f'the first line must be the header, with "format": "{_FORMAT}"')
        version = data.get("version")
        if type(version) is not int or version != VERSION:
            raise _Bad(f"version {_shown(version)} is not supported, only {VERSION}")
        if unknown := data.keys() - _HEADER_KEYS:
            raise _Bad(f'unknown key "{min(unknown)}" in the header')
        comment = data.get("comment", "")
        if not isinstance(comment, str):
            raise _Bad(f"comment must be a string, not {_shown(comment)}")
        self.comment = comment

    def entry(self, data: dict[str, Any], line: int) -> None:
        if "op" in data:
            self.operator(data, line)
            return
        if "root" in data:
            self.only_keys(data, "root", "bytes")
            storage = self.define(data["root"], line)
            size = _whole(data.get("bytes"), "bytes", LARGEST_BYTES)
            self.native.add(_ROOT, storage, size, line)
        elif "free" in data:
            self.only_keys(data, "free")
            storage = self.alive(data["free"])
            self.lines[storage] = -line
            self.pins.pop(storage, None)
            self.native.add(_FREE, storage, 0, line)
        elif "pin" in data:
            self.only_keys(data, "pin")
            storage = self.alive(data["pin"])
            self.pins[storage] = self.pins.get(storage, 0) + 1
            self.native.add(_PIN, storage, 0, line)
        elif "unpin" in data:
            self.only_keys(data, "unpin")
            storage = self.alive(data["unpin"])
            if not self.pins.get(storage):
                raise _Bad(f"storage {storage} is not pinned")
            self.pins[storage] -= 1
            self.native.add(_UNPIN, storage, 0, line)
        elif "evict" in data:
            self.only_keys(data, "evict")
            self.native.add(_EVICT, self.alive(data["evict"]), 0, line)
        elif "materialize" in data:
            self.only_keys(data, "materialize")
            self.native.add(_MATERIALIZE, self.alive(data["materialize"]), 0, line)
        elif "make_root" in data:
            self.only_keys(data, "make_root")
            self.native.add(_MAKE_ROOT, self.alive(data["make_root"]), 0, line)
        elif "step" in data:
            self.only_keys(data, "step")
            self.step(data["step"], line)
        else:
            raise _Bad("unknown kind of entry: " + ", ".join(sorted(data)) if data else "no entry")
        self.entry_ops.append(-1)

    def only_keys(self, data: dict[str, Any], *allowed: str) -> None:
        if len(data) > len(allowed) or any(key not in allowed for key in data):
            unknown = min(key for key in data if key not in allowed)
            raise _Bad(f'unknown key "{unknown}" beside "{allowed[0]}"')

    def step(self, mark: Any, line: int) -> None:
        if mark == "begin":
            if self.in_step:
                raise _Bad("a step begins inside a step")
        elif mark == "end":
            if not self.in_step:
                raise _Bad("a step ends that has not begun")
        else:
            raise _Bad(f'step must be "begin" or "end", not {_shown(mark)}')
        self.in_step = mark == "begin"
        self.native.add(_BEGIN_STEP if self.in_step else _END_STEP, 0, 0, line)

    def define(self, data: Any, line: int) -> int:
        storage = _whole(data, _ID)
        if storage in self.lines:
            raise _Bad(f"storage {storage} is already defined")
        self.lines[storage] = line
        return storage

    def alive(self, storage: Any) -> int:
        """`storage`, if it is one that lives."""
        if type(storage) is int:
            defined = self.lines.get(storage, 0)
            if defined > 0:
                return storage
            if defined < 0:
                raise _Bad(f"storage {storage} is dead since line {-defined}")
        raise _Bad(f"storage {_whole(storage, _ID)} is not defined")

    def operator(self, data: dict[str, Any], line: int) -> None:
        if not data.keys() <= _OPERATOR_KEYS:
            raise _Bad(f'unknown key "{min(data.keys() - _OPERATOR_KEYS)}" beside "op"')
        name = data["op"]
        if type(name) is not str or not name:
            raise _Bad(f"op must be the operator's name, not {_shown(name)}")
        cost = _whole(data.get("cost_ns"), "cost_ns")
        inputs = [self.alive(s) for s in _list(data.get("inputs", []), "inputs")]
        writes = overwrites = memory = outputs = sizes = ()  # type: Any
        if "writes" in data or "overwrites" in data:
            writes = [self.alive(s) for s in _list(data.get("writes", []), "writes")]
            overwrites = [self.alive(s) for s in _list(data.get("overwrites", []), "overwrites")]
            self.check_writes(inputs, writes, overwrites)
            # The native side wants what is written among the inputs.
            inputs += [s for s in writes if s not in inputs]
            inputs += overwrites
        if "outputs" in data:
            outputs, sizes = self.outputs(data["outputs"], line)
        if "memory" in data:
            memory = self.memory(data["memory"], len(outputs))
        side = data.get("side", "right")
        if side not in ("left", "right"):
            raise _Bad(f'side must be "left" or "right", not {_shown(side)}')
        replayable = data.get("replayable", True)
        if type(replayable) is not bool:
            raise _Bad(f"replayable must be true or false, not {_shown(replayable)}")
        op = self.op_numbers.setdefault(name, len(self.op_numbers))
        self.native.add_operator(
            op, cost, side == "left", replayable, inputs, outputs, sizes, writes, overwrites,
            memory, line,
        )  # fmt: skip
        self.entry_ops.append(op)

    def outputs(self, pairs: Any, line: int) -> tuple[list[int], list[int]]:
        outputs: list[int] = []
        sizes: list[int] = []
        for pair in _list(pairs, "outputs"):
            if type(pair) is not list or len(pair) != 2:
                raise _Bad(f"an output must be [storage, bytes], not {_shown(pair)}")
            outputs.append(self.define(pair[0], line))
            sizes.append(_whole(pair[1], "bytes", LARGEST_BYTES))
        return outputs, sizes

    def check_writes(self, inputs: list[int], writes: list[int], overwrites: list[int]) -> None:
        written = writes + overwrites
        if len(set(written)) < len(written):
            twice = next(s for s in written if written.count(s) > 1)
            raise _Bad(f"storage {twice} is written twice by one operator")
        if read := set(inputs) & set(overwrites):
            raise _Bad(f"storage {min(read)} is read and overwritten: list it under writes instead")

    def memory(self, steps: Any, num_outputs: int) -> list[tuple[int, int]]:
        """The memory steps as the native side wants them."""
        result: list[tuple[int, int]] = []
        made: set[int] = set()
        held: list[bool] = []  # by temporary
        for step in _list(steps, "memory"):
            if not _is_memory_step(step):
                raise _Bad(
                    'a memory step must be ["output", index], ["temporary", bytes] or '
                    f'["free", index], not {_shown(step)}'
                )
            kind, argument = step
            if kind == "temporary":
                _whole(argument, "bytes", LARGEST_BYTES)
                held.append(True)
            elif kind == "output":
                index = _whole(argument, "the index of an output")
                if index >= num_outputs or index in made:
                    problem = "made twice" if index in made else "not there"
                    raise _Bad(f"output {index} of the memory steps is {problem}")
                made.add(index)
            else:
                index = _whole(argument, "the index of a temporary")
                if index >= len(held) or not held[index]:
                    raise _Bad(f"temporary {index} of the memory steps is not held")
                held[index] = False
            result.append((_MEMORY_KINDS[kind], argument))
        if len(made) < num_outputs:
            missing = next(index for index in range(num_outputs) if index not in made)
            raise _Bad(f"output {missing} is missing from the memory steps")
        return result


def read_trace(path: str | Path) -> Trace:
    """Reads a trace (`.gz`: compressed) and checks all of it; raises `TraceError`."""
    reader = _Reader()
    decode = json.JSONDecoder().decode
    line = 0
    try:
        with _open(path) as file:
            for line, text in enumerate(file, 1):
                try:
                    data = decode(text.rstrip("\n"))
                except RecursionError:
                    raise _Bad("nested too deeply") from None
                except json.JSONDecodeError as error:
                    raise _Bad(f"not JSON: {error.msg} at column {error.colno}") from None
                except ValueError:
                    raise _Bad("a number has too many digits") from None
                if "\\u" in text:
                    _check_text(data)
                if type(data) is not dict:
                    raise _Bad(f"not a JSON object: {_shown(data)}")
                if line > 1:
                    reader.entry(data, line)
                else:
                    reader.header(data)
    except _Bad as error:
        raise TraceError(path, line, str(error)) from None
    except UnicodeDecodeError:
        raise TraceError(path, line + 1, "not UTF-8") from None
    except EOFError:
        raise TraceError(path, line + 1, "the compressed file ends too early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(path, 0, f"cannot be decompressed: {error}") from None
    except OSError as error:
        raise TraceError(path, 0, f"cannot be read: {error.strerror or error}") from None
    if line == 0:
        raise TraceError(path, 0, "empty: the first line must be the header")
    return Trace(
        str(path), reader.comment, reader.native, list(reader.op_numbers), reader.entry_ops
    )


def _check_text(data: Any) -> None:
    """JSON can spell half of a character, which could be neither printed nor written."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Bad("a string has one half of a surrogate pair") from None


def _open(path: str | Path) -> io.TextIOBase:
    if str(path).endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8", newline="\n")
    return Path(path).open(encoding="utf-8", newline="\n")


class TraceWriter:
    """Writes a trace entry by entry; `read_trace` checks it. A context manager.

    What it writes depends only on the calls: the same calls give the same bytes.
    """

    def __init__(self, path: str | Path, comment: str = "") -> None:
        raw = Path(path).open("wb")  # noqa: SIM115
        binary = gzip.GzipFile("", "wb", 9, raw, mtime=0) if str(path).endswith(".gz") else raw
        self._raw = raw  # a GzipFile does not close what it was given
        self._file = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
        header: dict[str, Any] = {"format": _FORMAT, "version": VERSION}
        if comment:
            header["comment"] = comment
        self._write(header)

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
        replayable: bool = True,
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
        if not replayable:
            entry["replayable"] = False
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

    def pin(self, storage: int) -> None:
        self._write({"pin": storage})

    def unpin(self, storage: int) -> None:
        self._write({"unpin": storage})

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
        self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
