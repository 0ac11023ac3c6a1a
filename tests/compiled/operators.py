"""Torch's database of operators as graphs, of AOTAutograd's as they are, or compiled by inductor.

    python -m tests.compiled.operators               # all, traced
    python -m tests.compiled.operators inductor 0 40 # the first forty, compiled

A graph is a region like those of torch.compile. Plain and inside a budget where everything is
evicted after every operator, results and gradients must be the same bits.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.aot_autograd import aot_function
from torch.utils._pytree import tree_flatten, tree_unflatten

from coop._native import _C
from tests.operators.cases import OPERATORS, Case, _function
from tests.operators.verdict import Verdict, judge

NUM_SAMPLES = {"traced": 3, "inductor": 1}


def as_graph(op: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The operator, made a forward and a backward graph at every call, and run."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def function(*tensors: Tensor) -> Any:
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = tree_unflatten(leaves, spec)
            return op(*args, **kwargs)

        if backend == "traced":
            graph = aot_function(function, boxed_nop)
        else:
            torch._dynamo.reset()
            graph = torch.compile(function, backend=backend, dynamic=False)
        return graph(*(leaves[place] for place in places))

    return call


def cases(name: str, backend: str) -> Iterator[Case]:
    op = OPERATORS[name]
    dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64
    if not op.supports_dtype(dtype, "cpu"):
        return
    gradients = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=gradients)
    for number, sample in enumerate(itertools.islice(samples, NUM_SAMPLES[backend])):
        yield Case(name, backend, dtype, number, _function(as_graph(op, backend), sample))


def verdicts(name: str, backend: str = "traced") -> Iterator[tuple[Case, Verdict]]:
    for case in cases(name, backend):
        yield case, judge(case)


def main(backend: str = "traced", begin: str = "0", end: str = "") -> None:
    torch.set_num_threads(1)
    counts = Counter[str]()
    num_replays = 0
    for name in list(OPERATORS)[int(begin) : int(end) if end else None]:
        for case, verdict in verdicts(name, backend):
            counts[verdict.kind] += 1
            num_replays += 0 if verdict.stats is None else verdict.stats.num_replays
            if verdict.kind in ("wrong", "error", "raw"):
                print(case.name, verdict.kind, verdict.detail, flush=True)
    num_graphs = sum(name.startswith("compiled::") for name in _C.operator_names())
    print(dict(counts), num_graphs, "graphs", num_replays, "replays")
    sys.exit(1 if counts["wrong"] or counts["error"] else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
