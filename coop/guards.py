"""Memory that is touched without an operator: by NumPy, by files, by whoever has a raw pointer.

The engine sees operators only. While a budget is active, the methods below tell it what they are
about to do with a tensor's or a storage's bytes.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import profiler
from torch.multiprocessing.reductions import StorageWeakRef

from coop._native import _C
from coop.patches import Patches, Wrapper

__all__ = ["MemoryPatch"]

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
# protected first (Rule 6).
_WRITES: tuple[tuple[Any, str], ...] = (
    (torch.UntypedStorage, "_byteswap"),
    (torch.UntypedStorage, "_set_from_file"),
    (torch.Tensor, "apply_"),
    (torch.Tensor, "map_"),
    (torch.Tensor, "map2_"),
)
# Gives it other memory. FSDP2 takes that of unsharded parameters by this, and gives it back.
_RESIZES: tuple[tuple[Any, str], ...] = ((torch.UntypedStorage, "resize_"),)
# Ask what kind of memory it is: an arena is never pinned host memory.
_KINDS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "is_pinned"),
    (torch.UntypedStorage, "is_pinned"),
)
# Hand out an address, which must stay valid: the storage is kept. Libraries compare addresses of
# parameters; it is taken as not written through.
_POINTERS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "data_ptr"),
    (torch.Tensor, "const_data_ptr"),
    (torch.UntypedStorage, "data_ptr"),
)
# Tell storages apart by their addresses: these stay the same until the end of the call.
_COMPARES: tuple[tuple[Any, str], ...] = (
    (torch, "save"),
    (torch.serialization, "save"),
)
# Share the bytes with somebody who may also write them, unseen, for as long as he likes: the
# storage is kept and nothing is recomputed from it. The engine can tell which storages were given
# to NumPy outside of budgets (`Engine::is_numpys`).
_SHARES: tuple[tuple[Any, str], ...] = ((torch.Tensor, "numpy"),)
# The same, but nothing tells afterwards: these stay guarded from the first budget on, and what they
# share between budgets is remembered.
_EXPORTS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "__dlpack__"),
    (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
)
# Lets native code take addresses past us: without it, consumers ask __dlpack__.
_HIDDEN: tuple[tuple[Any, str], ...] = ((torch.Tensor, "__dlpack_c_exchange_api__"),)
_SHARED_REASON = "its memory is shared with a NumPy array or the like"

Memory = torch.Tensor | torch.UntypedStorage
EngineOf = Callable[[Memory], _C.Engine]


class _Compared(threading.local):
    """What this thread keeps for the sake of _COMPARES; None outside of those."""

    kept: list[Memory] | None = None


class _SharedStorages:
    """Storages that were shared while no budget was active, as long as they live."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._prune_at = 64

    def add(self, x: torch.Tensor) -> None:
        if not torch._C._has_storage(x):
            return
        storage = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
        self._storages[storage.cdata] = storage
        if len(self._storages) >= self._prune_at:
            self._forget_the_dead()
            self._prune_at = 2 * len(self._storages) + 64

    def alive(self) -> Iterator[torch.UntypedStorage]:
        self._forget_the_dead()
        for storage in self._storages.values():
            x = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
            if x is not None:
                yield x

    def __len__(self) -> int:
        return len(self._storages)

    def _forget_the_dead(self) -> None:
        for key, storage in list(self._storages.items()):
            if storage.expired():  # type: ignore[no-untyped-call]
                del self._storages[key]


class MemoryPatch:
    """The methods that touch memory, while a budget is active.

    `engine_of` finds the engine for a tensor or a storage.
    """

    def __init__(self, engine_of: EngineOf) -> None:
        self._find_engine = engine_of
        self._engine_of: EngineOf | None = None  # while a budget is active
        self._patches = Patches()
        self._exports = Patches()  # from the first budget on
        self._has_exports = False
        self._compared = _Compared()
        self._shared = _SharedStorages()

    def enter(self) -> None:
        """A budget begins."""
        self._engine_of = self._find_engine
        for x in self._shared.alive():
            self._engine_of(x).expose(x)
        if not self._has_exports:
            self._exports.undo()  # the last time it may have been interrupted
            for owner, name in _EXPORTS:
                self._exports.replace(owner, name, self._sharing)
            self._has_exports = True
        for owner, name, wrap in self._wrappers():
            self._patches.replace(owner, name, wrap)
        for owner, name in _HIDDEN:
            self._patches.hide(owner, name)
        _C.set_profiling(torch._C._autograd._profiler_enabled())

    def leave(self) -> None:
        """The budget ends. Can be interrupted anywhere, and called again."""
        self._engine_of = None
        _C.set_profiling(False)
        self._patches.undo()

    def _wrappers(self) -> Iterator[tuple[Any, str, Wrapper]]:
        for table, wrap in (
            (_READS, self._before(_materialize)),
            (_WRITES, self._before(_before_write)),
            (_RESIZES, self._resizing),
            (_KINDS, self._answering_no),
            (_POINTERS, self._keeping),
            (_COMPARES, self._comparing),
            (_SHARES, self._sharing),
        ):
            for owner, name in table:
                if hasattr(owner, name):  # some are new
                    yield owner, name, wrap
        yield profiler, "_enable_profiler", _profiling(True)
        yield profiler, "_disable_profiler", _profiling(False)

    def _before(self, act: Callable[[_C.Engine, Memory], None]) -> Wrapper:
        """The method, after `act(engine, x)` for each tensor and storage among its arguments."""

        def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                for x in (*args, *kwargs.values()):
                    engine_of = self._engine_of
                    if isinstance(x, Memory) and engine_of is not None:
                        act(engine_of(x), x)
                return method(*args, **kwargs)

            return guarded

        return wrap

    def _resizing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method. What is resized to nothing dies, and what was nothing has any bytes."""

        @functools.wraps(method)
        def guarded(x: torch.UntypedStorage, size: int) -> Any:
            engine = None if self._engine_of is None else self._engine_of(x)
            if engine is None:
                return method(x, size)
            if size == 0 and engine.give_back(x):
                return x
            was_empty = x.nbytes() == 0
            if not was_empty:
                engine.before_unseen_write(x)
            result = method(x, size)
            if was_empty:
                engine.undefine(x)
            return result

        return guarded

    def _answering_no(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, without looking at memory that is ours."""

        @functools.wraps(method)
        def guarded(x: Memory, *args: Any, **kwargs: Any) -> Any:
            if self._engine_of is not None and self._engine_of(x).owns(x):
                return False
            return method(x, *args, **kwargs)

        return guarded

    def _sharing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, which gives somebody else the memory of `x`, or a copy that is theirs."""

        @functools.wraps(method)
        def guarded(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._engine_of is None:
                result = method(x, *args, **kwargs)
                self._shared.add(x)
                return result
            engine = self._engine_of(x)
            held = engine.owns(x) and not engine.is_kept(x)
            if held:
                engine.keep(x, _SHARED_REASON, False)  # for good once it is known to be shared
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
                    engine.unkeep(x)
            if not copied:
                engine.expose(x)
            return result

        return guarded

    def _keeping(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, which gives an address."""

        @functools.wraps(method)
        def guarded(x: Memory) -> Any:
            if _C.is_in_region():
                return method(x)  # what it uses is locked until it ends
            engine = None if self._engine_of is None else self._engine_of(x)
            if engine is None or not engine.owns(x) or engine.is_kept(x):
                return method(x)
            if self._compared.kept is None:
                engine.keep(x, _who_asks(), True)
            else:
                engine.keep(x, "it is being saved", False)
                self._compared.kept.append(x)
            return method(x)

        return guarded

    def _comparing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method; what is kept for it is not any more when it is done."""

        @functools.wraps(method)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            outer, kept = self._compared.kept, list[Memory]()
            self._compared.kept = kept
            try:
                return method(*args, **kwargs)
            finally:
                self._compared.kept = outer
                for x in kept:
                    if self._engine_of is not None:
                        self._engine_of(x).unkeep(x)

        return guarded


def _is_copied(x: torch.Tensor, *, force: bool = False, copy: Any = None, **kwargs: Any) -> bool:
    """Whether NumPy or DLPack, asked like this, get a copy."""
    if kwargs.get("dl_device") is not None and not x.is_cpu:
        return True
    return bool(copy) or (force and (not x.is_cpu or x.is_conj() or x.is_neg()))


def _materialize(engine: _C.Engine, x: Memory) -> None:
    if engine.owns(x):
        engine.materialize(x)


def _before_write(engine: _C.Engine, x: Memory) -> None:
    engine.before_unseen_write(x)


_PLUMBING = frozenset(["torch._tensor", "torch.storage", "torch._prims_common"])
_COMPILERS = ("torch._inductor", "torch._dynamo", "torch._functorch", "triton")


def _who_asks() -> str:
    """Why an address that is being asked for has to stay."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _PLUMBING:
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", "?"))
    if module.startswith(_COMPILERS) or "torchinductor" in frame.f_code.co_filename:
        return "compiled code uses it"
    return f"its address was taken by {module.partition('.')[0]}"


def _profiling(starts: bool) -> Wrapper:
    """The function, which starts or ends a profile of operators and their arguments."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if starts:
                _C.set_profiling(True)  # before the profiler's own
            result = method(*args, **kwargs)
            if not starts:
                _C.set_profiling(False)
            return result

        return guarded

    return wrap
