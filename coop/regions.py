"""Compiled graphs: what torch.compile makes runs as one operator (Note [Regions] in region.h).

Whatever the backend, AOTAutograd hands the callables of its graphs to a runtime wrapper, compiled
just now or loaded from a cache. From the first budget on each of them becomes a region there, which
outside of budgets just calls it. What differs between releases of torch is in this file only.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from coop._native import _C
from coop.graph_costs import CONTENTS, GraphCost, count_cost, find_written
from coop.partition_choices import name_compiled_function
from coop.partitions import Partitions
from coop.patches import Patches

__all__ = ["RegionsPatch"]

_WRAPPERS = "torch._functorch._aot_autograd.runtime_wrappers"
_BACKENDS = "torch._dynamo.backends.common"
_PARTITIONERS = "torch._functorch.partitioners"
_COMPILED = "torch._inductor.output_code"
_CUDA_GRAPHS = "torch._dynamo.backends.cudagraphs"

_NO_CUDA_GRAPHS = (
    "coop: compiled without CUDA graphs inside of the budget: they would have memory of their own, "
    "at addresses that never change (mode 'reduce-overhead' or 'max-autotune', and the backend "
    "'cudagraphs')"
)
_UNKNOWN = GraphCost(-1.0, 0.0)
# In the keys of torch's caches for what is compiled to donate nothing. Inductor's cache tells
# backward graphs that take what was saved for their own memory from others by nothing else.
_KEEPING = "coop: nothing is donated"


class _State(threading.local):
    """What this thread is about to compile, or to run."""

    forward: GraphCost = _UNKNOWN  # of the graph that was compiled last
    is_wrapped: bool = False  # its forward is a region already, inside of what unwraps tensors
    backward: Any = None  # the autograd function whose backward graph is about to run


class _Region:
    """A graph's callable, with the calling convention of AOTAutograd: a list that it may clear."""

    _boxed_call = True

    def __init__(self, callable: Callable[..., Any], native: _C.Region) -> None:
        self._callable = callable
        self._native = native

    def __call__(self, args: list[Any]) -> Any:
        if not _C.is_thread_enabled():
            return self._callable(args)
        return self._native.call(args)


class _Step(_Region):
    """A graph that writes parameters: an optimizer's step. Its hooks are not in the graph."""

    begin: Callable[[], None]
    end: Callable[[], None]

    def __call__(self, args: list[Any]) -> Any:
        self.begin()
        try:
            return super().__call__(args)
        finally:
            self.end()


class RegionsPatch:
    """The runtime wrappers of AOTAutograd. They stay replaced from the first budget on.

    `step_begins` and `step_ends` are called around the graphs that write parameters. `engine`: of
    the active budget, if this thread is inside of it.
    """

    def __init__(
        self,
        step_begins: Callable[[], None],
        step_ends: Callable[[], None],
        engine: Callable[[], _C.Engine | None],
    ) -> None:
        self._partitions = Partitions(engine)
        self._step_begins = step_begins
        self._step_ends = step_ends
        self._hooks = _Hooks()
        self._state = _State()
        self._is_entered = False

    def enter(self) -> None:
        """A budget begins."""
        if self._is_entered:
            return
        self._is_entered = True
        self._hooks.when_imported(_WRAPPERS, self._replace_wrappers)
        self._hooks.when_imported(_BACKENDS, self._replace_backends)
        self._hooks.when_imported(_COMPILED, self._replace_compiled)
        self._hooks.when_imported(_PARTITIONERS, self._replace_partitioners)
        self._hooks.when_imported(_CUDA_GRAPHS, self._replace_cuda_graphs)

    def leave(self) -> None:
        """The budget ends. Graphs that are compiled now may be run in the next one."""

    def budget_begins(self, budget_bytes: int) -> None:
        """It is active. What models save for another one is chosen again."""
        self._partitions.choices.enter(budget_bytes)

    def update_begins(self) -> None:
        """An optimizer is about to step."""
        self._partitions.choices.update_begins()

    def update_ends(self) -> None:
        """It has: what compiled models save may be chosen again."""
        self._partitions.choices.update_ends()

    def _replace_wrappers(self, module: ModuleType) -> None:
        patches = Patches()
        patches.replace(module.AOTDispatchSubclassWrapper, "post_compile", self._unwrapping)
        patches.replace(module.RuntimeWrapper, "post_compile", self._wrapping)
        patches.replace(module, "call_func_at_runtime_with_args", self._calling)

    def _replace_backends(self, module: ModuleType) -> None:
        Patches().replace(module, "aot_module_simplified", self._compiling)

    def _replace_compiled(self, module: ModuleType) -> None:
        Patches().replace(module.CompiledFxGraph, "post_compile", _without_cuda_graphs)

    def _replace_cuda_graphs(self, module: ModuleType) -> None:
        Patches().replace(module, "check_for_skip", _skipping)

    def _replace_partitioners(self, module: ModuleType) -> None:
        Patches().replace(module, "choose_saved_values_set", self._partitions.choosing)

    def _wrapping(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`RuntimeWrapper.post_compile`: a forward graph's callable, or the autograd function."""

        @functools.wraps(method)
        def post_compile(
            wrapper: Any, compiled: Any, aot_config: Any, *, runtime_metadata: Any
        ) -> Any:
            name = _name_of(aot_config)
            is_wrapped, self._state.is_wrapped = self._state.is_wrapped, False
            if not wrapper.trace_joint:
                if not is_wrapped:
                    compiled = self._make_forward(compiled, name, runtime_metadata)
            else:
                # The function looks its callables up when it is run.
                function = compiled.__self__
                if runtime_metadata.bw_donated_idxs is None:
                    runtime_metadata.bw_donated_idxs = []  # as torch asks when it is run
                if not is_wrapped:
                    function.compiled_fw = self._make_forward(
                        function.compiled_fw, name, runtime_metadata
                    )
                function._coop_name = name
                function._coop_choice = self._partitions.choice()
                function._coop_keeps = _KEEPING in torch.compiler.config.cache_key_tag
                function._backward_impl = staticmethod(
                    self._announcing(function, function._backward_impl)
                )
            return method(wrapper, compiled, aot_config, runtime_metadata=runtime_metadata)

        return post_compile

    def _unwrapping(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`AOTDispatchSubclassWrapper.post_compile`: a graph gets what tensors of a class hold."""

        @functools.wraps(method)
        def post_compile(
            wrapper: Any, compiled: Any, aot_config: Any, *, runtime_metadata: Any
        ) -> Any:
            metadata = getattr(wrapper.maybe_subclass_meta, "fw_metadata", None)
            self._state.is_wrapped = metadata is not None
            if metadata is not None:
                compiled = self._make_forward(compiled, _name_of(aot_config), metadata)
            return method(wrapper, compiled, aot_config, runtime_metadata=runtime_metadata)

        return post_compile

    def _announcing(self, function: Any, method: Callable[..., Any]) -> Callable[..., Any]:
        """`CompiledFunction._backward_impl`, which compiles the backward graph if it has to."""

        @functools.wraps(method)
        def backward_impl(*args: Any, **kwargs: Any) -> Any:
            outer, self._state.backward = self._state.backward, function
            try:
                if function.compiled_bw is None and function._coop_keeps:
                    with _keeping_what_was_saved():  # it is compiled now
                        return method(*args, **kwargs)
                return method(*args, **kwargs)
            finally:
                self._state.backward = outer

        return backward_impl

    def _calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call_func_at_runtime_with_args`, by which a backward graph is run."""

        @functools.wraps(call)
        def call_at_runtime(f: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
            function = self._state.backward
            if function is not None and f is function.compiled_bw:
                f = self._region_of_backward(function)
            return call(f, args, *others, **kwargs)

        return call_at_runtime

    def _compiling(self, simplified: Callable[..., Any]) -> Callable[..., Any]:
        """`aot_module_simplified`, which calls the backend's compilers."""

        @functools.wraps(simplified)
        def compile_module(*args: Any, **kwargs: Any) -> Any:
            self._state.forward = _UNKNOWN
            keeping = _C.is_thread_enabled()
            for name in ("fw_compiler", "inference_compiler"):
                if kwargs.get(name) is not None:
                    kwargs[name] = self._observed(kwargs[name])
            with (
                _keeping_what_was_saved() if keeping else nullcontext(),
                self._partitions.compiling(args[0]),
            ):
                return simplified(*args, **kwargs)

        return compile_module

    def _observed(self, compiler: Any) -> Any:
        """The compiler; what it compiles is looked at first."""
        if hasattr(compiler, "compiler_fn"):  # one whose results can be cached
            observed = copy.copy(compiler)
            observed.compiler_fn = self._observed(compiler.compiler_fn)
            return observed

        @functools.wraps(compiler)
        def compile_graph(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._state.forward = count_cost(graph)
            return compiler(graph, *args, **kwargs)

        return compile_graph

    def _make_forward(self, compiled: Any, name: str, metadata: Any) -> Any:
        cost, self._state.forward = self._state.forward, _UNKNOWN
        written = [
            i
            for i, info in enumerate(metadata.input_info)
            if info.mutation_type.name == "MUTATED_IN_GRAPH"
        ]
        # What is saved for the backward graph counts as well.
        has_results = (
            metadata.num_outputs + metadata.num_mutated_inp_runtime_indices > 0
            or metadata.num_intermediate_bases > 0
        )
        if not getattr(compiled, "_boxed_call", False):
            compiled = _boxed(compiled)
        inside = self._partitions.choices.measuring(
            compiled, self._partitions.choice(), is_backward=False
        )
        name = f"compiled::{name}.forward"
        CONTENTS[name] = cost.contents
        native = _C.Region(inside, name, written, has_results, cost.flops, cost.bytes)
        if not any(metadata.input_info[i].requires_grad for i in written):
            return _Region(compiled, native)
        step = _Step(compiled, native)
        step.begin, step.end = self._step_begins, self._step_ends
        return step

    def _region_of_backward(self, function: Any) -> Any:
        """Of a compiled autograd function whose backward graph is compiled."""
        compiled = function.compiled_bw
        known: tuple[Any, Any] | None = getattr(function, "_coop_backward", None)
        if known is not None and known[0] is compiled:
            return known[1]
        region = compiled
        graph = getattr(function._lazy_backward_info, "bw_module", None)
        written = getattr(compiled, "mutated_input_idxs", None)
        donated: Any = None if written is None else function.metadata.bw_donated_idxs
        if written is None and graph is not None:
            written = find_written(graph)
        # Where nothing tells what it writes, it is no region, and all it uses stays.
        if written is not None and getattr(compiled, "_boxed_call", False):
            cost = _UNKNOWN if graph is None else count_cost(graph)
            choices, choice = self._partitions.choices, function._coop_choice
            name = f"compiled::{function._coop_name}.backward"
            CONTENTS[name] = cost.contents
            native = _C.Region(
                choices.measuring(compiled, choice, is_backward=True),
                name,
                sorted({*written, *(donated or ())}),
                True,
                cost.flops,
                cost.bytes,
            )
            region = _Region(compiled, native)
        function._coop_backward = (compiled, region)
        return region


@contextmanager
def _keeping_what_was_saved() -> Iterator[None]:
    """A backward graph would take what was saved for its own memory: that must be as it was."""
    tag = torch.compiler.config.cache_key_tag
    if _KEEPING not in tag:
        tag += _KEEPING
    with (
        torch._functorch.config.patch(donated_buffer=False),
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
    ):
        yield


def _boxed(f: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def call(args: list[Any]) -> Any:
        return f(*args)

    return call


def _name_of(aot_config: Any) -> str:
    """A graph's, for reports: the function that is compiled, and which of its graphs it is."""
    compile_id = torch._guards.CompileContext.current_compile_id()
    return f"{name_compiled_function()}[{compile_id or aot_config.aot_id}]"


def _without_cuda_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """`CompiledFxGraph.post_compile`: graphs of CUDA's have memory of their own."""

    @functools.wraps(method)
    def post_compile(graph: Any, example_inputs: Any, constants: Any, graph_kwargs: Any) -> Any:
        wanted = graph_kwargs.get("cudagraphs")
        if wanted and _C.is_thread_enabled():
            if "cuda" in graph.device_types:
                # Python shows it once for each place that asks.
                warnings.warn(_NO_CUDA_GRAPHS, stacklevel=2)
            type(wanted).disable(wanted)
        return method(graph, example_inputs, constants, graph_kwargs)

    return post_compile


def _skipping(check: Callable[..., str | None]) -> Callable[..., str | None]:
    """`check_for_skip` of the backend "cudagraphs": why it runs a graph as it is."""

    @functools.wraps(check)
    def check_for_skip(*args: Any, **kwargs: Any) -> str | None:
        reason = check(*args, **kwargs)
        if reason is None and _C.is_thread_enabled():
            warnings.warn(_NO_CUDA_GRAPHS, stacklevel=2)
            reason = _NO_CUDA_GRAPHS
        return reason

    return check_for_skip


class _Hooks(MetaPathFinder):
    """Changes modules once they are imported: torch imports its compiler when it is used."""

    def __init__(self) -> None:
        self._changes: dict[str, Callable[[ModuleType], None]] = {}

    def when_imported(self, name: str, change: Callable[[ModuleType], None]) -> None:
        module = sys.modules.get(name)
        if module is not None:
            change(module)
            return
        self._changes[name] = change
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self._changes.pop(name, None)
        if change is None:
            return None
        if not self._changes:
            sys.meta_path.remove(self)
        spec = None
        for finder in sys.meta_path:
            if finder is not self and spec is None:
                spec = finder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, change)
        return spec


class _ChangingLoader(Loader):
    """Another loader's module, changed."""

    def __init__(self, loader: Loader, change: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
