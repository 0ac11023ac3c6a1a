"""What a compiled model saves for its backward pass, where all of it cannot fit into the budget.

A graph's backward needs everything that was saved at once, so there is nothing to evict. If that is
more than the budget, the program cannot run as it is: only then AOTAutograd's partitioner is asked
for less, with the shares that `activation_memory_budget` stands for. Nothing that fits is changed.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from coop.sizes import format_bytes

__all__ = ["Partitions", "draws_again"]

SHARES = (0.75, 0.5, 0.25, 0.0)
# Room for so many of a graph's largest tensors beside what is saved: three, and how they lie.
NUM_TEMPORARIES = 4


class _State(threading.local):
    budget_bytes: int | None = None  # for the graph that this thread compiles; None: leave it


class Partitions:
    """Chooses what is saved. `budget`: bytes of the active budget and the type of its device."""

    def __init__(self, budget: Callable[[], tuple[int, str] | None]) -> None:
        self._budget = budget
        self._state = _State()

    @contextmanager
    def compiling(self, graph_module: Any) -> Iterator[None]:
        """While AOTAutograd compiles this graph of dynamo's.

        Its cache knows nothing of budgets: a graph that may have to be partitioned for one is
        neither looked up nor stored. Half of the budget is a margin for what is not in this graph.
        """
        found = self._budget()
        nodes = getattr(getattr(graph_module, "graph", None), "nodes", ())
        values = [node.meta.get("example_value") for node in nodes]
        outer = self._state.budget_bytes
        self._state.budget_bytes = None
        if found is not None and 2 * _storage_bytes(values, found[1]) > found[0]:
            self._state.budget_bytes = found[0]
        try:
            if self._state.budget_bytes is None:
                yield
            else:
                with torch._functorch.config.patch(enable_autograd_cache=False):
                    yield
        finally:
            self._state.budget_bytes = outer

    def choosing(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """`choose_saved_values_set`, the partitioner's."""

        @functools.wraps(choose)
        def choose_saved(graph: Any, info: Any, memory_budget: float = 1) -> Any:
            saved = choose(graph, info, memory_budget=memory_budget)
            found = self._budget()
            # A share that the user has chosen stays.
            if memory_budget != 1 or self._state.budget_bytes is None or found is None:
                return saved
            budget_bytes, device = self._state.budget_bytes, found[1]
            # Parameters are there all the time.
            kept = tuple(getattr(info, "static_lifetime_input_nodes", ()))

            def needed(nodes: Iterable[Any]) -> int:
                return _storage_bytes((n.meta.get("val") for n in (*kept, *nodes)), device)

            before = needed(saved)
            if before <= budget_bytes:
                return saved
            # Gradients are as large as what they are of; the rest is for what the graphs make.
            values = [node.meta.get("val") for node in graph.nodes]
            largest = max(_storage_bytes([value], device) for value in values)
            room = budget_bytes - needed(()) - NUM_TEMPORARIES * largest
            share, best = 1.0, saved
            for smaller in SHARES:
                chosen = choose(graph, info, memory_budget=smaller)
                if draws_again(graph, info, chosen):
                    continue
                share, best = smaller, chosen
                if needed(chosen) <= room:
                    break
            warnings.warn(
                f"coop: a compiled graph would save {format_bytes(before)} for its backward pass, "
                f"parameters included, in a budget of {format_bytes(budget_bytes)}: compiled with "
                f"activation_memory_budget={share}, which saves {format_bytes(needed(best))}. It "
                "recomputes the rest; last bits may differ from those without a budget",
                stacklevel=2,
            )
            return best

        return choose_saved


def draws_again(graph: Any, info: Any, saved: Iterable[Any]) -> bool:
    """Whether the backward would draw random numbers of the forward a second time: others."""
    kept = set(saved)
    pending = [
        node for node in graph.nodes if node.op == "call_function" and not info.is_required_fw(node)
    ]
    seen = set[Any]()
    while pending:
        node = pending.pop()
        if node in seen or node in kept:
            continue
        seen.add(node)
        if info.is_required_fw(node) and _is_random(node):
            return True
        pending += node.all_input_nodes
    return False


def _is_random(node: Any) -> bool:
    tags = getattr(node.target, "tags", ())
    # Inductor's own have no such tag.
    inductors = ("inductor_seed", "inductor_random", "inductor_lookup_seed", "inductor_randint")
    return torch.Tag.nondeterministic_seeded in tags or any(
        name in str(node.target) for name in inductors
    )


def _storage_bytes(values: Iterable[Any], device: str) -> int:
    """Of all tensors among them on such a device, each storage once."""
    sizes: dict[Any, int] = {}
    for value in values:
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == device:
                if not torch._C._has_storage(tensor):
                    continue  # a level of vmap's, inside of a higher-order operator
                storage = tensor.untyped_storage()
                size = storage.nbytes()
                # Sizes that are not known count as nothing: the graph is left as it is.
                sizes[storage._cdata] = size if isinstance(size, int) else 0
    return sum(sizes.values())
