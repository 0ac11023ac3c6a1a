"""Calls of torch's own databases: operators, modules, optimizers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_map

from tests.operators.cases import MODULES, OPERATORS, UNDEFINED_RESULTS, _gradients, copied

OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db}
MOST_SAMPLES = 60  # of an operator, or of a module in training, evenly over all of them

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Call:
    """A function and how its arguments are made: anew for every call, the same each time."""

    name: str
    arguments: Callable[[], Arguments]
    function: Callable[..., Any]


def made(value: Any) -> Any:
    """The same, by an operator: not a plain copy of something outside, which would be an input."""
    if not isinstance(value, Tensor):
        return value
    copy = copied(value)
    if copy.layout == torch.strided and not copy.is_nested and not copy.is_quantized:
        copy = copied(copy.detach()).requires_grad_(copy.requires_grad)
    return copy


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the function gives and writes, and the gradients of what it was given."""

    def run(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        return results, _gradients(results, (args, kwargs)), args, kwargs

    return run


def evenly(samples: list[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(samples))[:: max(1, -(-len(samples) // MOST_SAMPLES))]


def operator_calls(operator: str) -> Iterator[Call]:
    """As a function with its backward pass, as a method, and in place."""
    op = OPERATORS[operator]
    dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64
    if operator in UNDEFINED_RESULTS or not op.supports_dtype(dtype, "cpu"):
        return
    gradients = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    for number, sample in evenly(samples):

        def arguments(sample: Any = sample) -> Arguments:
            args, kwargs = tree_map(made, ((sample.input, *sample.args), sample.kwargs))
            return args, kwargs

        yield Call(f"{operator} {number}", arguments, with_gradients(op))
        if not isinstance(sample.input, Tensor):
            continue
        if op.method_variant is not None:
            yield Call(f"{operator} {number}, method", arguments, method(op.method_variant))
        if op.inplace_variant is not None and not sample.broadcasts_input:
            yield Call(f"{operator} {number}, in place", arguments, in_place(op.inplace_variant))


def method(variant: Any) -> Callable[..., Any]:
    """Looked up when it is called: that finds what a budget has put in its place."""
    name = getattr(variant, "__name__", "")
    if getattr(Tensor, name, None) is not variant:
        return variant  # type: ignore[no-any-return]
    return lambda self, *args, **kwargs: getattr(self, name)(*args, **kwargs)


def in_place(variant: Any) -> Callable[..., Any]:
    def run(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():  # a leaf may be written
            return variant(self, *args, **kwargs), self, args, kwargs

    return run


def module_calls(name: str) -> Iterator[Call]:
    """A step in training and in evaluation with the module and its inputs evicted; and what is done
    with the module as a whole."""
    module = MODULES[name]
    dtype = torch.float32 if torch.float32 in module.dtypes else module.dtypes[0]
    whole = False
    for train in (True, False):
        torch.manual_seed(0)
        samples = module.module_inputs_func(
            module, "cpu", dtype, requires_grad=dtype.is_floating_point, training=train
        )
        for number, sample in evenly(list(samples)):

            def construct(sample: Any = sample, train: bool = train) -> nn.Module:
                given = sample.constructor_input
                args, kwargs = tree_map(made, (given.args, given.kwargs))
                built: nn.Module = module.module_cls(*args, **kwargs)
                return built.to(dtype).train(train)

            if not whole:
                whole = True
                for what, function in WHOLE_MODULES.items():
                    yield Call(f"{name}, {what}", lambda c=construct: ((c(), c()), {}), function)
            if sample.forward_input is None:
                continue

            def arguments(sample: Any = sample, construct: Any = construct) -> Arguments:
                given = sample.forward_input
                args, kwargs = tree_map(made, (given.args, given.kwargs))
                return (construct(), *args), kwargs

            variant = "training" if train else "evaluation"
            yield Call(f"{name} {number}, {variant}", arguments, module_step)


def module_step(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    results = module(*args, **kwargs)
    gradients = _gradients(results, (args, kwargs, list(module.parameters())))
    return results, gradients, args, kwargs, state_of(module)


def state_of(module: nn.Module) -> dict[str, Any]:
    """Without what a lazy module has not made yet."""
    return {name: t for name, t in module.state_dict().items() if not is_lazy(t)}


def saved_and_loaded(module: nn.Module, other: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    return state_of(other)


WHOLE_MODULES: dict[str, Callable[[nn.Module, nn.Module], Any]] = {
    "state saved and loaded": saved_and_loaded,
    "deepcopy": lambda module, _: state_of(copy.deepcopy(module)),
    "double": lambda module, _: state_of(module.double()),
    "to_empty": lambda module, other: (
        module.to_empty(device="cpu").load_state_dict(other.state_dict()),
        state_of(module),
    )[1],
    "requires_grad_": lambda module, _: state_of(module.requires_grad_(False)),
    "vector": lambda module, _: nn.utils.parameters_to_vector(module.parameters()),
}


def optimizer_calls(name: str) -> Iterator[Call]:
    """Two steps, the second with the state that the first has made; everything evicted before
    each."""
    info = OPTIMIZERS[name]
    dtype = torch.float32
    for number, given in enumerate(info.optim_inputs_func(device="cpu", dtype=dtype)):
        for implementation in ("for loop", *info.supported_impls):
            kwargs = dict(given.kwargs)
            if implementation == "fused" and "cpu" not in info.supports_fused_on:
                continue
            if implementation != "for loop":
                kwargs[implementation] = True
            elif "foreach" in info.supported_impls:
                kwargs["foreach"] = False
            yield from _steps(f"{name} {number}, {implementation}", info, kwargs)


def _steps(name: str, info: Any, kwargs: dict[str, Any]) -> Iterator[Call]:
    def prepare() -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
        scales = torch.arange(1, 7) / 10.0
        shapes = [(6, 6)] if info.optim_cls is torch.optim.Muon else [(6, 6), (6,)]
        parameters = [nn.Parameter((scales + torch.zeros(shape)).cos()) for shape in shapes]
        for parameter in parameters:
            gradient = parameter.detach().sin() + 0.1
            parameter.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
        options = {key: made(value) for key, value in kwargs.items()}
        return info.optim_cls(parameters, **options), parameters

    def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        def closure() -> Tensor:
            return sum((p.detach().square().sum() for p in parameters), torch.zeros(()))

        if kwargs.get("differentiable"):
            with torch.no_grad():
                optimizer.step()
        elif info.step_requires_closure:
            optimizer.step(closure)
        else:
            optimizer.step()

    def after_one_step() -> Arguments:
        optimizer, parameters = prepare()
        step(optimizer, parameters)
        return (optimizer, parameters), {}

    def results(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> Any:
        step(optimizer, parameters)
        gradients = [p.grad for p in parameters]
        return [p.detach() for p in parameters], gradients, optimizer.state_dict()["state"]

    yield Call(f"{name}, first step", lambda: (prepare(), {}), results)
    yield Call(f"{name}, second step", after_one_step, results)
