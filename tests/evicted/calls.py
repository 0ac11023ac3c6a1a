"""What is called: torch's databases, and its public functions by name.

A call makes its arguments by operators, so that they can be recomputed, and uses none of them
before it is asked to: in between everything is evicted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .databases import (
    MODULES,
    OPERATORS,
    OPTIMIZERS,
    Arguments,
    Call,
    module_calls,
    operator_calls,
    optimizer_calls,
)
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
    """The function on each kind of tensor, in all its places, and with numbers, or a list of
    tensors, in others; most raise, which is fine."""
    function, number = public_functions()[name]
    for kind, make in _shapes().items():
        for fillers, fill in FILLERS.items():
            if fillers != "tensors" and number < 2:
                continue

            def arguments(
                make: Callable[[], Tensor] = make, fill: Callable[..., Any] = fill
            ) -> Arguments:
                return (make(), *(fill(make) for _ in range(number - 1))), {}

            yield Call(f"{name} {kind}, {fillers}", arguments, function)

        def one_list(make: Callable[[], Tensor] = make) -> Arguments:
            return ([make(), make()], *(1 for _ in range(number - 1))), {}

        yield Call(f"{name} {kind}, a list", one_list, function)


# What the places after the first one get.
FILLERS: dict[str, Callable[[Callable[[], Tensor]], Any]] = {
    "tensors": lambda make: make(),
    "ones": lambda make: 1,
    "indices": lambda make: torch.arange(3) * 1,
}

SOURCES: dict[str, tuple[Callable[[], Any], Callable[[str], Iterator[Call]]]] = {
    "written": (lambda: WRITTEN, lambda name: _written_calls(name)),
    "database": (lambda: OPERATORS, operator_calls),
    "module": (lambda: MODULES, module_calls),
    "optimizer": (lambda: OPTIMIZERS, optimizer_calls),
    "public": (public_functions, public_calls),
}


def _written_calls(name: str) -> Iterator[Call]:
    make, function = WRITTEN[name]
    yield Call(name, lambda: (make(), {}), function)


def names() -> list[str]:
    """Of everything that can be called, by where it is from."""
    return [f"{source}:{name}" for source, (listed, _) in SOURCES.items() for name in listed()]


def calls(name: str) -> Iterator[Call]:
    source, _, name = name.partition(":")
    yield from SOURCES[source][1](name)
