"""What is called: the operator and module databases, and torch's public functions by name.

A call makes its arguments by operators, so that they can be recomputed, and uses none of them
before it is asked to: in between everything is evicted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.operators.cases import OPERATORS, UNDEFINED_RESULTS, copied

from .written import WRITTEN

# Not about tensors' bytes, or about the process: threads, files, devices, printing, randomness that
# no seed governs. By the end of the name.
LEFT_OUT = (
    "_is_view",
    "__reduce_ex__",
    "_make_subclass",
    "cuda",
    "has_names",
    "hpu",
    "ipu",
    "mtia",
    "pin_memory",
    "record_stream",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "seed",
    "share_memory_",
    "storage_type",
    "to_mkldnn",
    "typed_storage",
    "vulkan",
    "xpu",
)


@dataclass(frozen=True)
class Call:
    """A function and how its arguments are made: anew for every call, the same each time."""

    name: str
    arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    function: Callable[..., Any]


def _made(value: Any) -> Any:
    """The same, by an operator."""
    if not isinstance(value, Tensor):
        return value
    made = copied(value)
    if made.layout == torch.strided and not made.is_nested and not made.is_quantized:
        # Not a plain copy of something outside, which would be an input.
        made = copied(made.detach()).requires_grad_(made.requires_grad)
    return made


def database_calls(operator: str, most: int = 12) -> Iterator[Call]:
    """Samples of the operator database, evenly over all of them."""
    op = OPERATORS[operator]
    dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64
    if operator in UNDEFINED_RESULTS or not op.supports_dtype(dtype, "cpu"):
        return
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    for number, sample in list(enumerate(samples))[:: max(1, -(-len(samples) // most))]:

        def arguments(sample: Any = sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = tree_map(_made, ((sample.input, *sample.args), sample.kwargs))
            return args, kwargs

        yield Call(f"{operator} {number}", arguments, op)


def _shapes() -> dict[str, Callable[[], Tensor]]:
    """Tensors that functions may be content with."""
    return {
        "matrix": lambda: (torch.arange(36.0).view(6, 6) * 7 % 11) / 10 + 0.5,
        "vector": lambda: torch.arange(1, 7) / 10.0,
        "scalar": lambda: torch.ones(1) * 0.5,
        "batch": lambda: (torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4) * 7 % 11) / 11,
        "indices": lambda: torch.arange(6) % 3,
        "truths": lambda: torch.arange(36).view(6, 6) % 2 == 0,
        "complex": lambda: (torch.arange(36.0) / 36).view(6, 6) * (1 + 1j),
    }


def _positions(function: Callable[..., Any]) -> int:
    """How many arguments it needs, as torch's own list of overrides says."""
    parameters = inspect.signature(function).parameters.values()
    return sum(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )


def _as_programs_call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A method is looked up when it is called: that finds what a budget has put in its place."""
    method = name.removeprefix("torch.Tensor.")
    if method == name or "." in method or not hasattr(torch.Tensor, method):
        return function
    return lambda self, *args: getattr(torch.Tensor, method)(self, *args)


def public_functions() -> dict[str, tuple[Callable[..., Any], int]]:
    """Name -> function and number of arguments, of all that torch lets others override."""
    found: dict[str, tuple[Callable[..., Any], int]] = {}
    for function, dummy in torch.overrides.get_testing_overrides().items():
        name = torch.overrides.resolve_name(function) or getattr(function, "__name__", "?")
        last = name.removesuffix(".__get__").rpartition(".")[2]
        if last in LEFT_OUT or "__set__" in name or "__delete__" in name:
            continue
        found[name] = (_as_programs_call(name, function), _positions(dummy))
    return dict(sorted(found.items()))


def public_calls(name: str) -> Iterator[Call]:
    """The function on each kind of tensor, in all its places; most raise, which is fine."""
    function, number = public_functions()[name]
    for kind, make in _shapes().items():

        def arguments(
            make: Callable[[], Tensor] = make,
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return tuple(make() for _ in range(max(number, 1))), {}

        yield Call(f"{name} {kind}", arguments, function)


def names() -> list[str]:
    """Of everything that can be called, by where it is from."""
    return [
        *(f"written:{name}" for name in WRITTEN),
        *(f"database:{name}" for name in OPERATORS),
        *(f"public:{name}" for name in public_functions()),
    ]


def calls(name: str) -> Iterator[Call]:
    source, _, name = name.partition(":")
    if source == "database":
        yield from database_calls(name)
    elif source == "public":
        yield from public_calls(name)
    else:
        make, function = WRITTEN[name]
        yield Call(name, lambda: (make(), {}), function)
