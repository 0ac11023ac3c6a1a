"""Reads traces, and checks everything that docs/trace-format.md says of them."""

import gzip
import io
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coop._native import _C
from coop.sizes import LARGEST_BYTES

from .types import FORMAT, VERSION, Header, Trace, TraceError, is_compressed

__all__ = ["read_trace"]

# Whole nanoseconds are kept in a double by the native side: exact up to 2**53.
_LARGEST: Final = 2**50
_LARGEST_FLOPS: Final = 10**21
_ID: Final = "a storage's id"

_MEMORY_KINDS: Final = _C.memory_kinds()
_OPERATOR_KEYS: Final = frozenset(
    (
        "op", "cost_ns", "inputs", "outputs", "writes", "overwrites", "memory", "side",
        "replayable", "make_roots", "keep_old", "flops", "moved_bytes", "half", "source",
        "backward", "undefined",
    )
)  # fmt: skip
_KINDS: Final = _C.entry_kinds()
# Entries that name one living storage and nothing else.
_MARKS: Final = (
    "evict", "materialize", "make_root", "expose", "unseen_write", "leaf", "undefine", "give_back",
)  # fmt: skip


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


def _flag(data: dict[str, Any], key: str, default: bool | None = False) -> Any:
    value = data.get(key, default)
    if value is not default and type(value) is not bool:
        raise _Bad(f"{key} must be true or false, not {_shown(value)}")
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
        type(step) is list
        and len(step) == (3 if step[:1] == ["root"] else 2)
        and type(step[0]) is str
        and step[0] in _MEMORY_KINDS
    )


@dataclass
class _Reader:
    """Checks one line after the other and adds them to the native trace."""

    native: "_C.Trace" = field(default_factory=_C.Trace)
    op_numbers: dict[str, int] = field(default_factory=dict)
    entry_ops: list[int] = field(default_factory=list)
    sources: dict[int, str] = field(default_factory=dict)
    is_priceable: bool = True
    header: Header = field(default_factory=Header)
    # The line that defined each storage; negative, the line at which it died.
    lines: dict[int, int] = field(default_factory=dict)
    keeps: dict[int, int] = field(default_factory=dict)
    in_step: bool = False

    def read_header(self, data: dict[str, Any]) -> None:
        if data.get("format") != FORMAT:
            raise _Bad(f'the first line must be the header, with "format": "{FORMAT}"')
        version = data.get("version")
        if type(version) is not int or version != VERSION:
            raise _Bad(f"version {_shown(version)} is not supported, only {VERSION}")
        known = {key: value for key, value in data.items() if key not in ("format", "version")}
        if unknown := known.keys() - Header.__dataclass_fields__:
            raise _Bad(f'unknown key "{min(unknown)}" in the header')
        for key in ("comment", "device"):
            if not isinstance(known.get(key, ""), str):
                raise _Bad(f"{key} must be a string, not {_shown(known[key])}")
        _flag(known, "estimated")
        _whole(known.get("header_bytes", 0), "header_bytes", 4096)
        alignment = _whole(known.get("alignment", 64), "alignment", 2**20)
        if alignment == 0 or alignment & (alignment - 1):
            raise _Bad(f"alignment must be a power of two, not {alignment}")
        self.header = Header(**known)

    def entry(self, data: dict[str, Any], line: int) -> None:
        if "op" in data:
            self.operator(data, line)
            return
        if "root" in data:
            self.only_keys(data, "root", "bytes")
            storage = self.define(data["root"], line)
            self.native.add(_KINDS["root"], storage, self.size(data.get("bytes")), line)
        elif "external" in data:
            self.only_keys(data, "external", "bytes")
            storage = self.define(data["external"], line)
            self.native.add(_KINDS["external"], storage, self.size(data.get("bytes")), line)
        elif "free" in data:
            self.only_keys(data, "free")
            storage = self.alive(data["free"])
            self.lines[storage] = -line
            self.keeps.pop(storage, None)
            self.native.add(_KINDS["free"], storage, 0, line)
        elif "keep" in data or "pin" in data:  # the old name, until the next release
            key = "keep" if "keep" in data else "pin"
            self.only_keys(data, key)
            storage = self.alive(data[key])
            self.keeps[storage] = self.keeps.get(storage, 0) + 1
            self.native.add(_KINDS["keep"], storage, 0, line)
        elif "unkeep" in data or "unpin" in data:
            key = "unkeep" if "unkeep" in data else "unpin"
            self.only_keys(data, key)
            storage = self.alive(data[key])
            if not self.keeps.get(storage):
                raise _Bad(f"storage {storage} is not kept")
            self.keeps[storage] -= 1
            self.native.add(_KINDS["unkeep"], storage, 0, line)
        elif mark := next((key for key in _MARKS if key in data), None):
            self.only_keys(data, mark)
            self.native.add(_KINDS[mark], self.alive(data[mark]), 0, line)
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
        elif mark in ("end", "end_inside"):
            if not self.in_step:
                raise _Bad("a step ends that has not begun")
        else:
            raise _Bad(f'step must be "begin", "end" or "end_inside", not {_shown(mark)}')
        self.in_step = mark == "begin"
        self.native.add(_KINDS[f"step {mark}"], 0, 0, line)

    def size(self, data: Any) -> int:
        """A size in bytes as the engine asks its core for it."""
        return _whole(data, "bytes", LARGEST_BYTES) + self.header.header_bytes

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
        writes = overwrites = memory = outputs = sizes = roots = ()  # type: Any
        if "writes" in data or "overwrites" in data:
            writes = [self.alive(s) for s in _list(data.get("writes", []), "writes")]
            overwrites = [self.alive(s) for s in _list(data.get("overwrites", []), "overwrites")]
            self.check_writes(writes, overwrites)
            # The native side wants what is written among the inputs.
            given = set(inputs)
            inputs += [s for s in (*writes, *overwrites) if s not in given]
        if "outputs" in data:
            outputs, sizes = self.outputs(data["outputs"], line)
        if "memory" in data:
            memory, roots = self.memory(data["memory"], len(outputs), line)
        side = data.get("side", "right")
        if side not in ("left", "right"):
            raise _Bad(f'side must be "left" or "right", not {_shown(side)}')
        made_roots = self.made_roots(data.get("make_roots", []), [*writes, *overwrites])
        if "source" in data:
            if type(data["source"]) is not str:
                raise _Bad(f"source must be a string, not {_shown(data['source'])}")
            self.sources[len(self.entry_ops)] = data["source"]
        self.is_priceable &= cost == 0 or "moved_bytes" in data or "flops" in data
        op = self.op_numbers.setdefault(name, len(self.op_numbers))
        self.native.add_operator(
            op, cost, side == "left", _flag(data, "replayable", True), inputs, outputs, sizes,
            writes, overwrites, memory, line, roots, made_roots,
            _flag(data, "keep_old", None), _whole(data.get("flops", 0), "flops", _LARGEST_FLOPS),
            _whole(data.get("moved_bytes", 0), "moved_bytes"), _flag(data, "half"),
            _flag(data, "backward", True), _flag(data, "undefined"),
        )  # fmt: skip
        self.entry_ops.append(op)

    def outputs(self, pairs: Any, line: int) -> tuple[list[int], list[int]]:
        outputs: list[int] = []
        sizes: list[int] = []
        for pair in _list(pairs, "outputs"):
            if type(pair) is not list or len(pair) != 2:
                raise _Bad(f"an output must be [storage, bytes], not {_shown(pair)}")
            outputs.append(self.define(pair[0], line))
            sizes.append(self.size(pair[1]))
        return outputs, sizes

    def check_writes(self, writes: list[int], overwrites: list[int]) -> None:
        written = writes + overwrites
        if len(set(written)) < len(written):
            twice = next(s for s in written if written.count(s) > 1)
            raise _Bad(f"storage {twice} is written twice by one operator")

    def made_roots(self, ids: Any, written: list[int]) -> list[int]:
        """Indices of what is written that is made a root."""
        if ids is True:
            return list(range(len(written)))
        for storage in _list(ids, "make_roots"):
            if storage not in written:
                raise _Bad(f"make_roots names {_shown(storage)}, which is not written")
        return [written.index(storage) for storage in ids]

    def memory(
        self, steps: Any, num_outputs: int, line: int
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The memory steps as the native side wants them, and the roots made."""
        result: list[tuple[int, int]] = []
        roots: list[tuple[int, int]] = []
        made: set[int] = set()
        held: list[bool] = []  # by temporary
        for step in _list(steps, "memory"):
            if not _is_memory_step(step):
                raise _Bad(
                    'a memory step must be ["output", index], ["temporary", bytes], '
                    f'["free", index] or ["root", storage, bytes], not {_shown(step)}'
                )
            kind, argument = step[:2]
            if kind == "temporary":
                argument = self.size(argument)
                held.append(True)
            elif kind == "root":
                roots.append((self.define(argument, line), self.size(step[2])))
                argument = len(roots) - 1
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
        return result, roots


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
                    reader.read_header(data)
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
        str(path),
        reader.header,
        reader.native,
        list(reader.op_numbers),
        reader.entry_ops,
        reader.sources,
        reader.is_priceable,
    )


def _check_text(data: Any) -> None:
    """JSON can spell half of a character, which could be neither printed nor written."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Bad("a string has one half of a surrogate pair") from None


def _open(path: str | Path) -> io.TextIOBase:
    if is_compressed(path):
        return gzip.open(path, "rt", encoding="utf-8", newline="\n")
    return Path(path).open(encoding="utf-8", newline="\n")
