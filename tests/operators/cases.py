"""What is run: a sample of torch's databases of operators and modules, as a function.

A case is called as often as wanted. It makes everything it uses anew from the sample, so that
inside a budget the inputs too are values that can be evicted, and returns all tensors that must be
the same bits: results, gradients, inputs that were written, and the state of the global generator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

OPERATORS = {op.full_name if hasattr(op, "full_name") else op.name: op for op in op_db}
MODULES = {module.name: module for module in module_db}

# Their results are uninitialized memory, or an address.
UNDEFINED_RESULTS = frozenset(
    ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"]
)

FLOATS = (torch.float32, torch.float64)
OTHERS = (torch.complex64, torch.int64, torch.bool, torch.bfloat16)
QUICK_SECONDS = 2  # for all samples of one of the others


@dataclass(frozen=True)
class Case:
    """One sample of one operator in one variant."""

    operator: str
    variant: str
    dtype: torch.dtype
    number: int
    run: Callable[[], list[Any]]

    @property
    def name(self) -> str:
        return f"{self.operator}[{self.variant}, {str(self.dtype)[6:]}, sample {self.number}]"


def copied(value: Any) -> Any:
    """The tensor over a copy of its whole storage, so that views stay views."""
    if not isinstance(value, Tensor):
        return value
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return value.detach().clone().requires_grad_(value.requires_grad)
    with torch.no_grad():
        source = value.detach()
        conj, neg = source.is_conj(), source.is_neg()
        source = source.conj() if conj else source
        source = torch._neg_view(source) if neg else source
        whole = torch.empty(0, dtype=source.dtype).set_(source.untyped_storage()).clone()
        copy = whole.as_strided(source.shape, source.stride(), source.storage_offset())
        copy = torch._neg_view(copy) if neg else copy
        copy = copy.conj() if conj else copy
    return copy.detach().requires_grad_(value.requires_grad)


def _differentiable(leaves: list[Any]) -> list[Tensor]:
    return [
        leaf
        for leaf in leaves
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.layout == torch.strided
    ]


def _gradients(results: Any, inputs: Any) -> list[Any]:
    outputs = [t for t in _differentiable(tree_leaves(results)) if t.grad_fn is not None]
    leaves = [t for t in _differentiable(tree_leaves(inputs)) if t.is_leaf]
    if not outputs or not leaves:
        return []
    weights = [torch.randn_like(output) for output in outputs]
    return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def _function(op: Any, sample: Any) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        torch.manual_seed(0)
        inputs, args, kwargs = tree_map(copied, (sample.input, sample.args, sample.kwargs))
        results = op(inputs, *args, **kwargs)
        gradients = _gradients(results, (inputs, args, kwargs))
        return [results, gradients, inputs, args, kwargs, torch.get_rng_state()]

    return run


def _inplace(op: Any, sample: Any) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        torch.manual_seed(0)
        inputs, args, kwargs = tree_map(copied, (sample.input, sample.args, sample.kwargs))
        # Of a value that was read before, of one of its versions.
        written = inputs.clone()
        before = written + written if written.is_floating_point() else written.clone()
        results = op.inplace_variant(written, *args, **kwargs)
        gradients = _gradients((results, before), (inputs, args, kwargs))
        return [results, written, before, gradients, args, kwargs, torch.get_rng_state()]

    return run


def _out(op: Any, sample: Any, empty: bool) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        torch.manual_seed(0)
        with torch.no_grad():
            inputs, args, kwargs = tree_map(copied, (sample.input, sample.args, sample.kwargs))
            results = op(inputs, *args, **kwargs)
            leaves, spec = tree_flatten(results)
            make = (lambda t: t.new_empty(0)) if empty else (lambda t: torch.full_like(t, 1))
            outs = [make(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            before = [out.clone() for out in outs if isinstance(out, Tensor)]
            out = outs[0] if isinstance(results, Tensor) else tuple(outs)
            torch.manual_seed(0)
            op(inputs, *args, **kwargs, out=out)
        del spec
        return [results, outs, before, inputs, args, kwargs, torch.get_rng_state()]

    return run


def _module(module_class: type, sample: Any, dtype: torch.dtype, train: bool) -> Any:
    def run() -> list[Any]:
        """A step of training, and once more with what it has made of the parameters."""
        torch.manual_seed(0)
        made = tree_map(copied, (sample.constructor_input.args, sample.constructor_input.kwargs))
        module = module_class(*made[0], **made[1]).to(dtype).train(train)
        args, kwargs = tree_map(copied, (sample.forward_input.args, sample.forward_input.kwargs))
        results = module(*args, **kwargs)
        parameters = list(module.parameters())
        gradients = _gradients(results, (args, kwargs, parameters))
        if gradients and parameters:
            for parameter, gradient in zip(parameters, gradients[-len(parameters) :], strict=True):
                parameter.grad = gradient
            torch.optim.SGD(parameters, lr=0.1, momentum=0.9).step()
        again = module(*args, **kwargs)
        state = dict(module.state_dict())
        return [results, gradients, again, state, args, kwargs, torch.get_rng_state()]

    return run


def module_cases(name: str, dtype: torch.dtype) -> Iterator[Case]:
    """Of a module, while training and while not."""
    module = MODULES[name]
    for train, variant in ((True, "training"), (False, "evaluation")):
        torch.manual_seed(0)
        samples = module.module_inputs_func(
            module, "cpu", dtype, requires_grad=dtype.is_floating_point, training=train
        )
        for number, sample in enumerate(samples):
            if sample.forward_input is not None:
                function = _module(module.module_cls, sample, dtype, train)
                yield Case(name, variant, dtype, number, function)


def cases(operator: str, dtype: torch.dtype) -> Iterator[Case]:
    """All of them: as a function with gradients, in place, into given and into empty results."""
    if operator in MODULES:
        yield from module_cases(operator, dtype)
        return
    op = OPERATORS[operator]
    gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    for number, sample in enumerate(samples):
        yield Case(operator, "function", dtype, number, _function(op, sample))
        if (
            op.inplace_variant is not None
            and isinstance(sample.input, Tensor)
            and not sample.broadcasts_input
        ):
            yield Case(operator, "in place", dtype, number, _inplace(op, sample))
        if op.supports_out and "out" not in sample.kwargs:
            for empty, variant in ((False, "out"), (True, "empty out")):
                yield Case(operator, variant, dtype, number, _out(op, sample, empty))


def dtypes(operator: str, wanted: tuple[torch.dtype, ...]) -> Iterator[torch.dtype]:
    """Those of the wanted that the operator supports."""
    if operator in MODULES:
        return (dtype for dtype in wanted if dtype in MODULES[operator].dtypes)
    return (dtype for dtype in wanted if OPERATORS[operator].supports_dtype(dtype, "cpu"))


def all_pairs(wanted: tuple[torch.dtype, ...]) -> Iterator[tuple[str, torch.dtype]]:
    return itertools.chain.from_iterable(
        ((operator, dtype) for dtype in dtypes(operator, wanted)) for operator in OPERATORS
    )
