"""What can be told of a graph before it is compiled: what it costs, and which inputs it writes."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

__all__ = ["CONTENTS", "GraphCost", "count_cost", "find_written"]

# What is inside of the graphs that were compiled in this process, by their names, for reports.
CONTENTS: dict[str, str] = {}
MOST_NAMED = 4


class GraphCost(NamedTuple):
    """Of all operators inside; `flops` is negative where they are not known."""

    flops: float
    bytes: float
    contents: str = ""  # its operators


def count_cost(graph_module: Any) -> GraphCost:
    """Floating-point operations, and the bytes that the operators which do them move.

    The rest is fused with them, or with each other: what it moves is little besides.
    """
    flops = moved = 0.0
    operators = Counter[str]()
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "overloadpacket"):
            continue
        operators[node.target.overloadpacket.__name__] += 1
        formula = flop_registry.get(node.target.overloadpacket)
        if formula is None:
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _concrete)
        result = _concrete(node)
        try:
            flops += float(formula(*args, **kwargs, out_val=result))
        except Exception:  # a formula for arguments of another kind
            continue
        inputs = [_concrete(n) for n in node.all_input_nodes]
        results = result if isinstance(result, tuple | list) else [result]
        moved += sum(x.nbytes for x in (*inputs, *results) if isinstance(x, torch.Tensor))
    return GraphCost(flops, moved, _describe(operators))


def _describe(operators: Counter[str]) -> str:
    """The most frequent by name: `2 addmm, 1 gelu and 3 others`."""
    ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{count} {name}" for name, count in ordered[:MOST_NAMED])
    others = sum(count for _, count in ordered[MOST_NAMED:])
    return f"{named} and {others} others" if others else named


def find_written(graph_module: Any) -> list[int]:
    """Positions of the inputs that some operator of the graph writes."""
    inputs = {n: i for i, n in enumerate(graph_module.graph.find_nodes(op="placeholder"))}
    written = set[int]()
    for node in graph_module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            for target in value if isinstance(value, list | tuple) else [value]:
                base = _base(target)
                if base in inputs:
                    written.add(inputs[base])
    return sorted(written)


def _base(node: Any) -> Any:
    """The node whose memory a view of it shows."""
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        shares = schema is not None and any(a.alias_info is not None for a in schema.arguments)
        if not shares or not node.args or not isinstance(node.args[0], torch.fx.Node):
            break
        node = node.args[0]
    return node


def _concrete(node: torch.fx.Node) -> Any:
    """What the node stands for, with the sizes that it was compiled for."""
    return torch.utils._pytree.tree_map(_on_meta, node.meta.get("val"))


def _on_meta(x: Any) -> Any:
    hint = _hint
    if isinstance(x, torch.Tensor):
        return torch.empty([hint(n) for n in x.shape], dtype=x.dtype, device="meta")
    return hint(x)


def _hint(x: Any) -> Any:
    if isinstance(x, torch.SymInt | torch.SymFloat):
        return x.node.hint if x.node.hint is not None else 1
    return x
