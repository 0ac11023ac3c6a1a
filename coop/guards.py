"""Memory that is touched without an operator: by NumPy, by files, by whoever has a raw pointer.

The engine sees operators only. While a budget is active, the methods below tell it what they are
about to do with a tensor's or a storage's bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["guard", "release", "watch"]

# Read the bytes at once: they are brought back first.
_READS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "tolist"),
    (torch.Tensor, "__deepcopy__"),
    (torch.UntypedStorage, "copy_"),
    (torch.UntypedStorage, "fill_"),
    (torch.UntypedStorage, "is_shared"),
    (torch.UntypedStorage, "_write_file"),
    (torch.UntypedStorage, "_share_cuda_"),
    (torch.UntypedStorage, "_share_fd_cpu_"),
    (torch.UntypedStorage, "_share_filename_cpu_"),
    (torch._C.PyTorchFileWriter, "write_record"),
)
# Write the bytes, or replace the memory that holds them: whatever would be recomputed from them is
# settled first (Rule 6).
_WRITES: tuple[tuple[Any, str], ...] = (
    (torch.UntypedStorage, "resize_"),
    (torch.UntypedStorage, "_byteswap"),
    (torch.UntypedStorage, "_set_from_file"),
)
# Ask what kind of memory it is: an arena is never pinned host memory.
_KINDS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "is_pinned"),
    (torch.UntypedStorage, "is_pinned"),
)
# Hand out an address, which must stay valid: the storage is pinned. Libraries compare the addresses
# of parameters; it is taken as not written through.
_POINTERS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "data_ptr"),
    (torch.UntypedStorage, "data_ptr"),
)
# Tell storages apart by their addresses: these stay the same until the end of the call.
_COMPARES: tuple[tuple[Any, str], ...] = (
    (torch, "save"),
    (torch.serialization, "save"),
)
# Share the bytes with somebody who may also write them, unseen, for as long as he likes: the
# storage is pinned and nothing is recomputed from it.
_SHARES: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "numpy"),
    (torch.Tensor, "__dlpack__"),
    (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
)

EngineOf = Callable[[Any], Any]

_engine_of: EngineOf | None = None
_replaced: list[tuple[Any, str, Any]] = []


class _Compared(threading.local):
    """What this thread pinned for the sake of _COMPARES; None outside of those."""

    pinned: list[Any] | None = None


_compared = _Compared()
# Storages that were shared while no budget was active.
_shared: dict[int, StorageWeakRef] = {}
_prune_at = 64


def _replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Any]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _before(act: Callable[[Any, Any], None]) -> Callable[[Callable[..., Any]], Any]:
    """The method, after `act(engine, x)` for each tensor and storage among its arguments."""

    def wrap(method: Callable[..., Any]) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            for x in args:
                if isinstance(x, (torch.Tensor, torch.UntypedStorage)) and _engine_of is not None:
                    act(_engine_of(x), x)
            return method(*args, **kwargs)

        return guarded

    return wrap


def _answering_no(method: Callable[..., Any]) -> Any:
    """The method, without looking at memory that is ours."""

    def guarded(x: Any, *args: Any, **kwargs: Any) -> Any:
        if _engine_of is not None and _engine_of(x).owns(x):
            return False
        return method(x, *args, **kwargs)

    return guarded


def _sharing(method: Callable[..., Any]) -> Any:
    """The method, which gives somebody else the memory of `x`."""

    def guarded(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = method(x, *args, **kwargs)
        _share(x)
        return result

    return guarded


def _materialize(engine: Any, x: Any) -> None:
    if engine.owns(x):
        engine.materialize(x)


def _before_write(engine: Any, x: Any) -> None:
    engine.before_unseen_write(x)


def _pinning(method: Callable[..., Any]) -> Any:
    """The method, which gives an address. It raises when there is none, because `x` is evicted."""

    def guarded(x: Any) -> Any:
        engine = None if _engine_of is None else _engine_of(x)
        if engine is None or not engine.owns(x) or engine.is_pinned(x):
            return method(x)
        if _compared.pinned is None:
            address = method(x)
            engine.pin(x, True)
            return address
        engine.pin(x, False)
        _compared.pinned.append(x)
        return method(x)

    return guarded


def _comparing(method: Callable[..., Any]) -> Any:
    """The method; what it pins is unpinned when it is done."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        outer, pinned = _compared.pinned, list[Any]()
        _compared.pinned = pinned
        try:
            return method(*args, **kwargs)
        finally:
            _compared.pinned = outer
            for x in pinned:
                if _engine_of is not None:
                    _engine_of(x).unpin(x)

    return guarded


def _share(x: torch.Tensor) -> None:
    global _prune_at
    if _engine_of is not None:
        _engine_of(x).expose(x)
        return
    if not torch._C._has_storage(x):
        return
    storage = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
    _shared[storage.cdata] = storage
    if len(_shared) >= _prune_at:
        _forget_the_dead()
        _prune_at = 2 * len(_shared) + 64


def _forget_the_dead() -> None:
    for key, storage in list(_shared.items()):
        if storage.expired():  # type: ignore[no-untyped-call]
            del _shared[key]


def watch() -> None:
    """From now on, remember what is shared outside of budgets: it is shared inside them too."""
    for owner, name in _SHARES:
        _replace(owner, name, _sharing)


def guard(engine_of: EngineOf) -> None:
    """A budget begins. `engine_of` finds the engine for a tensor or a storage."""
    global _engine_of
    release()  # the last time it may have been interrupted
    _engine_of = engine_of
    _forget_the_dead()
    for storage in _shared.values():
        x = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
        if x is not None:
            engine_of(x).expose(x)
    wrappers = [
        *((owner, name, _before(_materialize)) for owner, name in _READS),
        *((owner, name, _before(_before_write)) for owner, name in _WRITES),
        *((owner, name, _answering_no) for owner, name in _KINDS),
        *((owner, name, _pinning) for owner, name in _POINTERS),
        *((owner, name, _comparing) for owner, name in _COMPARES),
    ]
    for owner, name, wrap in wrappers:
        _replaced.append((owner, name, owner.__dict__.get(name)))
        _replace(owner, name, wrap)


def release() -> None:
    """The budget ends. Can be interrupted anywhere, and called again."""
    global _engine_of
    _engine_of = None
    while _replaced:
        owner, name, before = _replaced[-1]
        if before is not None:
            setattr(owner, name, before)
        elif name in owner.__dict__:
            delattr(owner, name)
        _replaced.pop()
