"""Memory that is touched without an operator: by NumPy, by files, by whoever has a raw pointer.

The engine sees operators only. While a budget is active, the methods below tell it what they are
about to do with a tensor's or a storage's bytes.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.autograd import profiler
from torch.multiprocessing.reductions import StorageWeakRef

from coop import threads
from coop._native import _C

__all__ = ["guard", "release", "watch"]

# Read the bytes at once: they are brought back first.
_READS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "tolist"),
    (torch.Tensor, "__deepcopy__"),
    (torch, "set_rng_state"),
    (torch.random, "set_rng_state"),
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

# Lets native code take addresses past us: without it, consumers ask __dlpack__.
_HIDDEN: tuple[tuple[Any, str], ...] = ((torch.Tensor, "__dlpack_c_exchange_api__"),)

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


Wrapper = Callable[[Callable[..., Any]], Any]


def _replace(owner: Any, name: str, wrap: Wrapper) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _before(act: Callable[[Any, Any], None]) -> Wrapper:
    """The method, after `act(engine, x)` for each tensor and storage among its arguments."""

    def wrap(method: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            for x in (*args, *kwargs.values()):
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


def _is_copied(x: torch.Tensor, *, force: bool = False, copy: Any = None, **kwargs: Any) -> bool:
    """Whether NumPy or DLPack, asked like this, get a copy."""
    if kwargs.get("dl_device") is not None and not x.is_cpu:
        return True
    return bool(copy) or (force and (not x.is_cpu or x.is_conj() or x.is_neg()))


def _sharing(method: Callable[..., Any]) -> Any:
    """The method, which gives somebody else the memory of `x`, or a copy that is theirs."""

    @functools.wraps(method)
    def guarded(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _engine_of is None:
            result = method(x, *args, **kwargs)
            _share(x)
            return result
        engine = _engine_of(x)
        held = engine.owns(x) and not engine.is_pinned(x)
        if held:
            engine.pin(x, "its memory is shared with a NumPy array or the like", False)
        was_inside = _C.is_thread_enabled()
        copied = False
        # A copy is not the engine's: nobody would know that its address was given away.
        _C.set_thread_enabled(False)
        try:
            result = method(x, *args, **kwargs)
            options = dict(zip(("force",), args, strict=False)) | kwargs
            copied = _is_copied(x, **options)
        except BaseException:
            copied = True
            raise
        finally:
            _C.set_thread_enabled(was_inside)
            if held and copied:
                engine.unpin(x)
        if not copied:
            engine.expose(x)
        return result

    return guarded


def _materialize(engine: Any, x: Any) -> None:
    if engine.owns(x):
        engine.materialize(x)


def _before_write(engine: Any, x: Any) -> None:
    engine.before_unseen_write(x)


def _who_asks() -> str:
    """Why an address that is being asked for has to stay."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _PLUMBING:
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", "?"))
    if module.startswith(_COMPILERS) or "torchinductor" in frame.f_code.co_filename:
        return "compiled code uses it"
    return f"its address was taken by {module.partition('.')[0]}"


_PLUMBING = frozenset(["torch._tensor", "torch.storage", "torch._prims_common"])
_COMPILERS = ("torch._inductor", "torch._dynamo", "torch._functorch", "triton")


def _pinning(method: Callable[..., Any]) -> Any:
    """The method, which gives an address."""

    @functools.wraps(method)
    def guarded(x: Any) -> Any:
        engine = None if _engine_of is None else _engine_of(x)
        if engine is None or not engine.owns(x) or engine.is_pinned(x):
            return method(x)
        if _compared.pinned is None:
            engine.pin(x, _who_asks(), True)
        else:
            engine.pin(x, "it is being saved", False)
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


def _profiling(show: bool) -> Wrapper:
    """The function, which starts or ends a profile of operators and their arguments."""

    def wrap(method: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if show:
                _C.show_inputs(True)  # before the profiler's own
            result = method(*args, **kwargs)
            if not show:
                _C.show_inputs(False)
            return result

        return guarded

    return wrap


def _share(x: torch.Tensor) -> None:
    """Outside of budgets."""
    global _prune_at
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


def _wrappers() -> Iterator[tuple[Any, str, Wrapper]]:
    for table, wrap in (
        (_READS, _before(_materialize)),
        (_WRITES, _before(_before_write)),
        (_KINDS, _answering_no),
        (_POINTERS, _pinning),
        (_COMPARES, _comparing),
    ):
        for owner, name in table:
            yield owner, name, wrap
    yield threading.Thread, "start", threads.starting
    yield ThreadPoolExecutor, "submit", threads.submitting
    yield profiler, "_enable_profiler", _profiling(True)
    yield profiler, "_disable_profiler", _profiling(False)


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
    for owner, name, wrap in _wrappers():
        _replaced.append((owner, name, owner.__dict__.get(name)))
        _replace(owner, name, wrap)
    for owner, name in _HIDDEN:
        if name in owner.__dict__:
            _replaced.append((owner, name, owner.__dict__[name]))
            delattr(owner, name)
    _C.show_inputs(torch._C._autograd._profiler_enabled())


def release() -> None:
    """The budget ends. Can be interrupted anywhere, and called again."""
    global _engine_of
    _engine_of = None
    _C.show_inputs(False)
    while _replaced:
        owner, name, before = _replaced[-1]
        if before is not None:
            setattr(owner, name, before)
        elif name in owner.__dict__:
            delattr(owner, name)
        _replaced.pop()
