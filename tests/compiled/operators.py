"""Torch's database of operators as graphs of AOTAutograd's (`python -m tests.compiled.operators`).

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

from tests.operators.cases import OPERATORS, Case, _function
from tests.operators.verdict import Verdict, judge

NUM_SAMPLES = 3


def as_graph(op: Callable[..., Any]) -> Callable[..., Any]:
    """The operator, traced and run as a forward and a backward graph at every call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def function(*tensors: Tensor) -> Any:
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = tree_unflatten(leaves, spec)
            return op(*args, **kwargs)

        return aot_function(function, boxed_nop)(*(leaves[place] for place in places))

    return call


def cases(name: str) -> Iterator[Case]:
    op = OPERATORS[name]
    dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64
    if not op.supports_dtype(dtype, "cpu"):
        return
    gradients = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=gradients)
    for number, sample in enumerate(itertools.islice(samples, NUM_SAMPLES)):
        yield Case(name, "graph", dtype, number, _function(as_graph(op), sample))


def verdicts(name: str) -> Iterator[tuple[Case, Verdict]]:
    for case in cases(name):
        yield case, judge(case)


def main(begin: int = 0, end: int | None = None) -> None:
    torch.set_num_threads(1)
    counts = Counter[str]()
    num_replays = 0
    for name in list(OPERATORS)[begin:end]:
        for case, verdict in verdicts(name):
            counts[verdict.kind] += 1
            num_replays += 0 if verdict.stats is None else verdict.stats.num_replays
            if verdict.kind in ("wrong", "error", "raw"):
                print(case.name, verdict.kind, verdict.detail, flush=True)
    print(dict(counts), num_replays, "replays")
    sys.exit(1 if counts["wrong"] or counts["error"] else 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
