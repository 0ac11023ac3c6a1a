"""Running a program without the hardware it needs: tensors have shapes and devices, and no bytes.

Inside `pretend` every tensor is one of torch's fake tensors. What asks for a GPU gets the fake
device, what reads a number gets a plausible one (1, or False), and an engine over no memory sees
the same operators as on the hardware.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from coop._native import _C

__all__ = ["DataDependentError", "pretend"]

_aten = torch.ops.aten
# Their results have as many elements as the data says.
_DATA_DEPENDENT = frozenset(
    (
        _aten.nonzero.default,
        _aten.masked_select.default,
        _aten._unique2.default,
        _aten.unique_dim.default,
        _aten.unique_consecutive.default,
        _aten.repeat_interleave.Tensor,
    )
)


# Operators on lists of tensors (csrc/adapter/dispatch/separable.cc).
_ON_LISTS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")
_READERS = frozenset(
    (
        torch.Tensor.tolist,
        torch.Tensor.item,
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.__format__,
    )
)
_run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
_attention = F.scaled_dot_product_attention
_resize_storage = torch.UntypedStorage.resize_


class DataDependentError(RuntimeError):
    """The program needs the content of a tensor, and there is none."""


def _a_number(dtype: torch.dtype) -> bool | int | float:
    """Not 0: optimizers divide by what depends on the number of steps."""
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1


def _numbers(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """What reads all of a tensor gets."""
    with _disable_current_modes():
        return torch.full(tensor.shape, _a_number(tensor.dtype), dtype=tensor.dtype).numpy()


class _FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's fake tensors, with numbers for those who read one; an engine sees the operators."""

    def __init__(self, engine: _C.Engine, in_parts: bool) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.engine = engine
        self.in_parts = in_parts
        self.running = False  # an operator: what it is made of is not the program's

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten._local_scalar_dense.default:
            return _a_number(args[0].dtype)
        if func is _aten.equal.default:
            return False
        if func in _DATA_DEPENDENT:
            raise DataDependentError(
                f"{func} makes as many elements as the data says, and without the hardware there "
                "is no data: record the program where it can run (coop.record in a budget)"
            )
        kwargs = kwargs or {}
        if any(not issubclass(kind, FakeTensor) for kind in types):
            return NotImplemented  # DTensor and the like: what it is made of comes by itself

        def run(args: Any = args, kwargs: Any = kwargs) -> Any:
            outer, self.running = self.running, True
            try:
                return FakeTensorMode.__torch_dispatch__(self, func, types, args, kwargs)
            finally:
                self.running = outer

        schema = getattr(func, "_schema", None)
        if self.running or schema is None or schema.name.startswith(("prim::", "profiler::")):
            return run()
        name, overload = schema.name, schema.overload_name
        if self.in_parts and name.startswith(_ON_LISTS):
            parts = self.engine.find_parts(name, overload, args, kwargs)
            if parts:
                return self._run_parts(schema, args, kwargs, run, parts)
        return self.engine.dispatch(name, overload, args, kwargs, run)

    def _run_parts(
        self,
        schema: Any,
        args: Any,
        kwargs: dict[str, Any],
        run: Callable[[Any, Any], Any],
        parts: list[tuple[int, int]],
    ) -> list[Any] | None:
        size = max(end for _, end in parts)
        made: dict[int, Any] = {}
        for begin, end in parts:

            def part(value: Any, of: slice = slice(begin, end)) -> Any:
                return (
                    value[of] if isinstance(value, list | tuple) and len(value) == size else value
                )

            some = tuple(part(value) for value in args)
            named = {key: part(value) for key, value in kwargs.items()}
            made[begin] = self.engine.dispatch(
                schema.name, schema.overload_name, some, named, partial(run, some, named)
            )
        if not schema.returns:
            return None
        return [tensor for _, tensors in sorted(made.items()) for tensor in tensors]

    def __deepcopy__(self, memo: Any) -> _FakeMode:
        return self  # a tensor's copy is of the same kind


class _OneDevice(TorchFunctionMode):
    """Every device is the fake one, and every tensor that comes from outside becomes fake."""

    def __init__(self, mode: _FakeMode, gpu: bool) -> None:
        super().__init__()
        self.mode = mode
        self.gpu = gpu

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self.mode.running:
            return func(*args, **kwargs)  # torch's own, on the way to a fake tensor
        if func is torch.Tensor.cuda or func is torch.Tensor.cpu:
            return args[0]
        if getattr(func, "__name__", "") in ("pin_memory", "record_stream"):
            return args[0]
        if func in _READERS and not isinstance(args[0], FakeTensor):
            with _disable_current_modes():  # there is data: the shape of a tree, say
                return func(*args, **kwargs)
        if func is torch.Tensor.tolist:
            return _numbers(args[0]).tolist()
        if func is torch.Tensor.numpy:
            return _numbers(args[0])
        if func is torch.Tensor.__array__:
            numbers, dtype = _numbers(args[0]), kwargs.get("dtype")
            return numbers if dtype is None else numbers.astype(dtype, copy=False)
        if func is torch.Tensor.__dlpack__:
            with _disable_current_modes():
                return torch.from_numpy(_numbers(args[0])).__dlpack__(**kwargs)
        if func is torch.Tensor.__format__:
            # As of a tensor: torch's own takes one of its subclasses for any object.
            shown = _a_number(args[0].dtype) if args[0].dim() == 0 else str(args[0])
            return format(shown, args[1])
        if func is torch.Tensor.__deepcopy__:
            if not isinstance(args[0], FakeTensor):
                with _disable_current_modes():
                    return func(*args, **kwargs)
            args[0].constant = None  # a number that nobody reads, with bytes
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        kwargs.pop("generator", None)
        if func is torch.Tensor.to:
            args = tuple(_on_cpu(argument) for argument in args)
        args, kwargs = tree_map_only(torch.Tensor, self.faked, (args, kwargs))
        if self.gpu and func is _attention:
            return _gpu_attention(*args, **kwargs)
        return func(*args, **kwargs)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """For what torch runs inside of one of its functions, where this mode is off."""

        def inside(*args: Any, **kwargs: Any) -> Any:
            if self in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return inside

    def faked(self, tensor: torch.Tensor) -> torch.Tensor:
        if _is_fake(tensor):
            return tensor
        return self.mode.from_tensor(tensor)  # the same one for the same tensor


def _is_fake(tensor: torch.Tensor) -> bool:
    """Or made of fake ones. A fake one of a DTensor would be another, without its gradient."""
    if isinstance(tensor, FakeTensor):
        return True
    if not is_traceable_wrapper_subclass(tensor):
        return False
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return all(_is_fake(part) for part in parts if isinstance(part, torch.Tensor))


def _gpu_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """By the kernels of a GPU: a CPU has none with dropout, and keeps all of the probabilities."""
    if query.dim() != 4:
        return _attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    if enable_gqa:
        groups = query.size(1) // key.size(1)
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        results = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
    else:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                attn_mask.logical_not(), float("-inf")
            )
        if attn_mask is not None:
            shape = (*query.shape[:3], key.size(2))
            attn_mask = attn_mask.to(query.dtype).expand(shape)
        results = _aten._scaled_dot_product_efficient_attention(
            query,
            key,
            value,
            attn_mask,
            any(tensor.requires_grad for tensor in (query, key, value)),
            dropout_p,
            is_causal,
            scale=scale,
        )
    attended: torch.Tensor = results[0]
    return attended


def _on_cpu(argument: Any) -> Any:
    if isinstance(argument, torch.device):
        return torch.device("cpu")
    if isinstance(argument, str):
        return "cpu"
    return argument


def _apply(self: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
    """What `module.to` and `module.cuda` do; torch's own cannot change parameters that are fake."""
    if recurse:
        for child in self.children():
            _apply(child, fn)
    with torch.no_grad():
        for name, parameter in self._parameters.items():
            if parameter is None:
                continue
            applied = fn(parameter)
            if applied is not parameter:
                self._parameters[name] = torch.nn.Parameter(applied, parameter.requires_grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
    return self


def _cpu_autocast(init: Callable[..., None]) -> Callable[..., None]:
    def patched(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, "cpu", *args, **kwargs)

    return patched


def _iterator_without_workers(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """Data are loaded here: worker processes send tensors by memory that these do not have."""
    before = loader.num_workers, loader.timeout
    loader.num_workers, loader.timeout = 0, 0
    try:
        return _SingleProcessDataLoaderIter(loader)
    finally:
        loader.num_workers, loader.timeout = before


_UNCOMPILED = (
    "coop: recorded as it runs without torch.compile, which needs the hardware: compiled graphs "
    "keep less and are faster. For a plan of them, record the program there: `coop run --trace`"
)


def _uncompiled(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`torch.compile`: a compiler makes tensors of its own, which would mix with these."""
    warnings.warn(_UNCOMPILED, stacklevel=2)
    return (lambda function: function) if model is None else model


@contextlib.contextmanager
def pretend(engine: _C.Engine, *, gpu: bool, in_parts: bool = False) -> Iterator[FakeTensorMode]:
    """What the body computes has no bytes; `engine` sees its operators.

    Optimizers choose the operators that they choose on a GPU, and with `gpu` attention its kernels.
    With `in_parts`, updates of all parameters at once are several operators.
    """
    foreach_types = [torch.Tensor, torch.nn.Parameter, FakeTensor]
    # What it remembers of earlier programs makes results in another order: a recording repeats.
    FakeTensorMode.cache_clear()
    mode = _FakeMode(engine, in_parts)
    one_device = _OneDevice(mode, gpu)
    with (
        _patched(optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu", "cuda"]),
        _patched(optimizer, "_foreach_supported_types", foreach_types),
        _patched(torch.nn.Module, "_apply", _apply),
        _patched(torch.utils.data.DataLoader, "_get_iterator", _iterator_without_workers),
        _patched(torch, "compile", _uncompiled),
        _patched(torch.autocast, "__init__", _cpu_autocast(torch.autocast.__init__)),
        # `backward` runs code of the program (checkpointed layers, hooks), and modules call these
        # from functions of torch: in both places the mode would be off.
        _patched(torch.UntypedStorage, "resize_", _resize),
        _patched(torch.autograd, "_engine_run_backward", one_device.around(_run_backward)),
        _patched(F, "scaled_dot_product_attention", one_device.around(_attention)),
        mode,
        one_device,
    ):
        yield mode


def _resize(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """FSDP2 gives the memory of unsharded parameters back by this, and takes it again."""
    if self.device.type == "meta":
        _C.resize_meta(self, size)
    else:
        _resize_storage(self, size)
    return self


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
