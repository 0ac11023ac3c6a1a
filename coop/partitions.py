"""What a compiled model saves for its backward pass, where all of it cannot fit into the budget.

A graph's backward needs everything that was saved at once, so there is nothing to evict. Where that
and what is beside it may be more than the budget, AOTAutograd's partitioner is asked for less, with
the shares that `activation_memory_budget` stands for. The first steps show how much fits
(partition_choices.py). Nothing that surely fits is changed.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from coop._native import _C
from coop.partition_choices import Choice, Choices, find_compiled_code, free_beside
from coop.sizes import format_bytes

__all__ = ["Partitions", "draws_again"]

# Tried before anything was measured, and in which steps after that.
SHARES = (0.75, 0.5, 0.25, 0.0)
NUM_FINER = 20
# Room for so many of a graph's largest tensors beside what is saved: three, and how they lie.
NUM_TEMPORARIES = 4

Chooser = Callable[[float], list[Any]]


class _State(threading.local):
    budget_bytes: int | None = None  # for the graph that this thread compiles; None: leave it
    choice: Choice | None = None  # that was made for it


class Partitions:
    """Chooses what is saved. `engine`: of the active budget, if this thread is inside of it."""

    def __init__(self, engine: Callable[[], _C.Engine | None]) -> None:
        self._engine = engine
        self._state = _State()
        self.choices = Choices(engine)

    @contextmanager
    def compiling(self, graph_module: Any) -> Iterator[None]:
        """While AOTAutograd compiles this graph of dynamo's.

        Its cache knows nothing of budgets: a graph that may have to be partitioned for one is
        neither looked up nor stored. Half of the budget is a margin for what is not in this graph.
        """
        engine = self._engine()
        nodes = getattr(getattr(graph_module, "graph", None), "nodes", ())
        values = [node.meta.get("example_value") for node in nodes]
        outer = (self._state.budget_bytes, self._state.choice)
        self._state.budget_bytes = self._state.choice = None
        if engine is not None:
            budget_bytes = engine.stats()["budget_bytes"]
            if 2 * _storage_bytes(values, _type_of(engine)) > budget_bytes:
                self._state.budget_bytes = budget_bytes
        try:
            if self._state.budget_bytes is None:
                yield
            else:
                with torch._functorch.config.patch(enable_autograd_cache=False):
                    yield
        finally:
            self._state.budget_bytes, self._state.choice = outer

    def choice(self) -> Choice | None:
        """The one that was made for the graph that this thread compiles."""
        return self._state.choice

    def choosing(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """`choose_saved_values_set`, the partitioner's."""

        @functools.wraps(choose)
        def choose_saved(graph: Any, info: Any, memory_budget: float = 1) -> Any:
            saved = choose(graph, info, memory_budget=memory_budget)
            engine, budget_bytes = self._engine(), self._state.budget_bytes
            # A share that the user has chosen stays.
            if memory_budget != 1 or budget_bytes is None or engine is None:
                return saved
            device = _type_of(engine)
            # Parameters are there all the time.
            kept = tuple(getattr(info, "static_lifetime_input_nodes", ()))

            def needed(nodes: Iterable[Any]) -> int:
                return _storage_bytes((n.meta.get("val") for n in (*kept, *nodes)), device)

            def with_share(share: float) -> list[Any]:
                chosen: list[Any] = choose(graph, info, memory_budget=share)
                return chosen

            def fits(chosen: list[Any]) -> bool | None:
                """None: it would be another program."""
                return None if draws_again(graph, info, chosen) else needed(chosen) <= room

            code = find_compiled_code()
            values = [node.meta.get("val") for node in graph.nodes]
            largest = max(_storage_bytes([value], device) for value in values)
            choice = Choice(code, budget_bytes, 1.0, needed(saved), needed(saved), (), largest)
            before = self.choices.measured_before(choice)
            if before is not None:
                room = before.saved_bytes + free_beside(before)
            else:
                # Gradients are as large as what they are of; the rest is for what the graphs make.
                room = budget_bytes - needed(()) - NUM_TEMPORARIES * largest
            best = saved
            if choice.saved_bytes > room:
                larger: list[list[Any]] = []
                found = before and _largest_that_fits(with_share, fits)
                if found:
                    choice.share, best = found
                else:
                    choice.share, best, larger = _first_that_fits(saved, with_share, fits)
                choice.saved_bytes = needed(best)
                choice.larger_bytes = tuple(needed(nodes) for nodes in larger)
            self._state.choice = choice
            self.choices.add(choice)
            if before is not None:
                _say_what_was_measured(before, choice)
            elif choice.share < 1:
                _say_what_was_chosen(choice)
            return best

        return choose_saved


def _first_that_fits(
    saved: list[Any], with_share: Chooser, fits: Callable[[list[Any]], bool | None]
) -> tuple[float, list[Any], list[list[Any]]]:
    """Of a few, or else the last of them; and what larger ones would save, which did not fit."""
    share, best = 1.0, saved
    larger = []
    for smaller in SHARES:
        chosen = with_share(smaller)
        is_room = fits(chosen)
        if is_room is None:
            continue
        larger = [best, with_share(share - 1 / NUM_FINER)]
        share, best = smaller, chosen
        if is_room:
            break
    return share, best, [nodes for nodes in larger if fits(nodes) is not None]


def _largest_that_fits(
    with_share: Chooser, fits: Callable[[list[Any]], bool | None]
) -> tuple[float, list[Any]] | None:
    """Of shares between 0 and 1. None: none of them does."""
    best = None
    low, high = 0, NUM_FINER
    while high - low > 1:
        middle = (low + high) // 2
        chosen = with_share(middle / NUM_FINER)
        is_room = fits(chosen)
        if is_room:
            best = middle / NUM_FINER, chosen
        if is_room is False:
            high = middle
        else:
            low = middle
    return best


def _say_what_was_chosen(choice: Choice) -> None:
    warnings.warn(
        f"coop: a compiled graph would save {format_bytes(choice.most_saved_bytes)} for its "
        f"backward pass, parameters included, in a budget of {format_bytes(choice.budget_bytes)}: "
        f"compiled with activation_memory_budget={choice.share}, which saves "
        f"{format_bytes(choice.saved_bytes)}, until the first steps have shown what fits. It "
        "recomputes the rest; last bits may differ from those without a budget",
        stacklevel=3,
    )


def _say_what_was_measured(before: Choice, choice: Choice) -> None:
    chosen = "all" if choice.share == 1 else f"activation_memory_budget={choice.share}"
    warnings.warn(
        f"coop: the first steps have shown that a compiled graph takes "
        f"{format_bytes(before.taken_bytes)} of the budget of {format_bytes(choice.budget_bytes)} "
        f"if it saves {format_bytes(before.saved_bytes)} for its backward pass, parameters "
        f"included: compiled once more with {chosen}, which saves "
        f"{format_bytes(choice.saved_bytes)}",
        stacklevel=3,
    )


def _type_of(engine: _C.Engine) -> str:
    return torch.device(engine.device()).type


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
