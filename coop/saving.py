"""Saving tensors that have no bytes: what is written is their shapes, and can be read again.

Pickle, and with it `torch.save`, keeps shapes, strides and types; safetensors' files have their
header, and a hole where the bytes would be. What writes files by code that is not Python's is told
where in the overlay to write.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from coop.overlay import Overlay

__all__ = ["saving"]

# Of safetensors, by torch's names.
_TYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_reduce_ex = torch.Tensor.__reduce_ex__
_TYPES = {name: dtype for dtype, name in _TYPE_NAMES.items()}


def rebuild(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    """What a tensor without bytes is pickled as."""
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def rebuild_real(content: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What a tensor with bytes is pickled as: a generator's state, say."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        if not content:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _reduce(tensor: torch.Tensor, protocol: Any) -> Any:
    shape = tuple(tensor.shape)
    if isinstance(tensor, FakeTensor):
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        arguments = (shape, tensor.stride(), tensor.dtype, tensor.requires_grad, is_parameter)
        return rebuild, arguments
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return _reduce_ex(tensor, protocol)  # type: ignore[no-untyped-call]
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        content = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return rebuild_real, (content, shape, tensor.dtype)


@contextlib.contextmanager
def saving(overlay: Overlay) -> Iterator[None]:
    """Within the overlay."""
    _divert_torch(overlay)
    _divert_numpy(overlay)
    _divert_safetensors(overlay)
    torch.Tensor.__reduce_ex__ = _reduce  # type: ignore[method-assign]
    try:
        with torch.serialization.safe_globals([rebuild, rebuild_real]):
            yield
    finally:
        torch.Tensor.__reduce_ex__ = _reduce_ex  # type: ignore[method-assign]


def _divert_torch(overlay: Overlay) -> None:
    def load(original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # There is one device.
        with overlay.diverting():
            return original(f, "cpu", *args, **kwargs)

    def file_writer(original: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(target, (str, os.PathLike)):
            # Without a buffer: nobody closes it before the file is read.
            where = Path(overlay.writable(target, empty=True, new=False))
            target = where.open("wb", buffering=0)
        return original(target, *args, **kwargs)

    overlay.divert(torch, "load", load)
    overlay.divert(torch._C, "PyTorchFileWriter", file_writer)
    for owner in (torch._C.ScriptModule, torch._C.ScriptFunction):
        for name in ("save", "_save_for_mobile"):
            overlay.divert(owner, name, functools.partial(_empty_file, overlay))
        for name in ("save_to_buffer", "_save_to_buffer_for_mobile"):
            overlay.divert(owner, name, lambda *_, **__: b"")
    overlay.divert(
        torch._C._autograd._ProfilerResult, "save", functools.partial(_profile_file, overlay)
    )


def _empty_file(overlay: Overlay, _: Any, owner: Any, path: Any, *args: Any, **kw: Any) -> None:
    """In the place of a compiled program, whose constants have no bytes."""
    Path(overlay.writable(path, empty=True, new=False)).write_bytes(b"")


def _profile_file(overlay: Overlay, original: Any, result: Any, path: Any) -> None:
    original(result, overlay.writable(path, empty=True, new=False))


def _divert_numpy(overlay: Overlay) -> None:
    """`savetxt` keeps a reference to `io.open`."""
    openers = getattr(importlib.import_module("numpy.lib._datasource"), "_file_openers", None)
    by_ending = getattr(openers, "_file_openers", {})
    if None in by_ending:
        overlay.on_leaving(by_ending.__setitem__, None, by_ending[None])
        by_ending[None] = io.open


def _divert_safetensors(overlay: Overlay) -> None:
    """Its writers want addresses and lengths, and read what is there."""
    try:
        safetensors = importlib.import_module("safetensors")
        of_torch = importlib.import_module("safetensors.torch")
    except ImportError:
        return

    def serialize_file(original: Any, tensors: Any, filename: Any, metadata: Any = None) -> Any:
        where = overlay.writable(filename, empty=True, new=False)
        if not isinstance(tensors, _Shapes):
            return original(tensors, where, metadata)  # arrays of NumPy
        header, num_bytes = tensors.header(metadata)
        with Path(where).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + num_bytes)
        return None

    def serialize(original: Any, tensors: Any, metadata: Any = None) -> bytes:
        if not isinstance(tensors, _Shapes):
            return bytes(original(tensors, metadata))
        header, num_bytes = tensors.header(metadata)
        return header + bytes(num_bytes)

    def safe_open(original: Any, filename: Any, framework: str, *args: Any, **kwargs: Any) -> Any:
        where = overlay.readable(filename)
        if framework not in ("pt", "torch", "pytorch"):
            return original(where, framework, *args, **kwargs)
        return _ShapesOfFile(where)

    def flatten(original: Any, tensors: dict[str, torch.Tensor], *_: Any) -> _Shapes:
        return _Shapes(tensors)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == safetensors.__name__:
            overlay.divert(module, "serialize_file", serialize_file)
            overlay.divert(module, "serialize", serialize)
            overlay.divert(module, "safe_open", safe_open)
    for name in ("_flatten", "_flatten_as_ptr"):
        overlay.divert(of_torch, name, flatten)


class _ShapesOfFile:
    """`safetensors.safe_open` without reading more than the header."""

    def __init__(self, path: str) -> None:
        with Path(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self._entries = json.loads(file.read(size))
        self._metadata = self._entries.pop("__metadata__", None)

    def __enter__(self) -> _ShapesOfFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        return sorted(self._entries, key=lambda name: self._entries[name]["data_offsets"])

    def metadata(self) -> dict[str, str] | None:
        metadata: dict[str, str] | None = self._metadata
        return metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        return torch.empty(entry["shape"], dtype=_TYPES[entry["dtype"]])

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._entries}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self, name)


class _Slice:
    def __init__(self, file: _ShapesOfFile, name: str) -> None:
        self._file = file
        self._name = name

    def get_shape(self) -> list[int]:
        return list(self._file._entries[self._name]["shape"])

    def get_dtype(self) -> str:
        return str(self._file._entries[self._name]["dtype"])

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._file.get_tensor(self._name)[index]


class _Shapes:
    """The tensors of a file of safetensors."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def header(self, metadata: dict[str, str] | None) -> tuple[bytes, int]:
        """What the file begins with, and how many bytes would follow."""
        entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        end = 0
        for name, tensor in self._tensors.items():
            begin, end = end, end + tensor.numel() * tensor.element_size()
            entries[name] = {
                "dtype": _TYPE_NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text, end
