"""What a compiled graph is to the engine: one operator, with a name, a cost and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._ordered_set import OrderedSet

import coop
from coop._native import _C
from coop.graph_costs import count_cost, find_written
from coop.regions import _skipping, _without_cuda_graphs
from coop.report.timeline import make_timeline

pytestmark = pytest.mark.debug_build

ROWS, WIDTH = 256, 64
KIB = 1024


def layer(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x @ weight) * 2 + torch.sin(x)


def compiled(f: Any = layer, **options: Any) -> Any:
    return torch.compile(f, backend="aot_eager", **options)


def region(callable: Any, *, written: tuple[int, ...] = (), has_results: bool = True) -> _C.Region:
    return _C.Region(callable, "compiled::by_hand", list(written), has_results, 0.0, 0.0)


def test_forward_and_backward_are_one_operator_each() -> None:
    step = compiled()
    with coop.budget("64 MiB", device="cpu") as session:
        x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH, requires_grad=True)
        ones = torch.ones(ROWS, WIDTH)
        torch.autograd.grad(step(x, weight), weight, ones)  # compiled here
        before = session.stats().num_operators
        y = step(x, weight)
        assert session.stats().num_operators == before + 1
        (gradient,) = torch.autograd.grad(y, weight, ones)
        assert session.stats().num_operators == before + 2
        (plain,) = torch.autograd.grad(layer(x, weight), weight, ones)
        assert torch.equal(gradient, plain)
    assert {"compiled::layer[0/0].forward", "compiled::layer[0/0].backward"} <= set(
        _C.operator_names()
    )


def test_a_trace_names_graphs_with_what_is_inside_and_where_they_were_called(
    tmp_path: Path,
) -> None:
    step = compiled()
    with coop.budget("64 MiB", device="cpu") as session:
        x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH)
        session.trace.start(source_lines=True)
        step(x, weight)
        session.trace.save(tmp_path / "step.jsonl")
    entries = [json.loads(line) for line in (tmp_path / "step.jsonl").read_text().splitlines()]
    (entry,) = [e for e in entries if str(e.get("op")).startswith("compiled::")]
    assert entry["op"] == "compiled::layer[0/0].forward"
    assert entry["flops"] == 2 * ROWS * WIDTH * WIDTH
    assert len(entry["outputs"]) == 1
    assert "test_regions.py" in entry["source"]


def test_a_module_of_torchs_own_gives_its_graphs_its_name() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU()), backend="aot_eager")
    with coop.budget("64 MiB", device="cpu"):
        model(torch.randn(ROWS, WIDTH)).sum().backward()
    names = {name.rpartition("[")[0] for name in _C.operator_names()}
    assert "compiled::Sequential.forward" in names


def test_all_results_of_a_graph_come_back_by_one_replay() -> None:
    def three(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x + 1, x * 2, torch.rand_like(x)

    step = compiled(three)
    with coop.budget("64 MiB", device="cpu", quiet_after=None) as session:
        x = torch.randn(ROWS, WIDTH)
        results = step(x)
        expected = [r.clone() for r in results]
        torch._dynamo.reset()  # the recipe holds what ran
        del step
        state = torch.get_rng_state()
        assert [coop.evict(r) for r in results] == [True] * 3
        assert all(torch.equal(r, e) for r, e in zip(results, expected, strict=True))
        assert session.stats().num_replays == 1
        assert torch.equal(state, torch.get_rng_state())


def test_no_address_stays_taken() -> None:
    addresses = []

    def take(args: list[Tensor]) -> list[Tensor]:
        (x,) = args
        args.clear()
        y = x + 1
        addresses.extend([x.data_ptr(), y.data_ptr()])
        return [y]

    with coop.budget("64 MiB", device="cpu", quiet_after=None):
        x = torch.randn(ROWS, WIDTH) * 2
        expected = (x + 1).clone()
        (y,) = region(take).call([x])
        assert len(addresses) == 2
        assert coop.evict(x)
        assert coop.evict(y)
        assert torch.equal(y, expected)
        assert len(addresses) == 4


def test_what_a_graph_writes_is_written_once() -> None:
    def count(args: list[Tensor]) -> list[Tensor]:
        x, total = args
        total.add_(x)
        return [total * x]

    with coop.budget("64 MiB", device="cpu", quiet_after=None) as session:
        x, total = torch.randn(ROWS, WIDTH) * 2, torch.zeros(ROWS, WIDTH) + 1
        expected_total, expected = total + x, (total + x) * x
        (y,) = region(count, written=(1,)).call([x, total])
        for _ in range(2):
            assert coop.evict(y)
            assert torch.equal(y, expected)
            assert torch.equal(total, expected_total)
        assert session.stats().num_replays > 0


def test_inputs_die_inside_a_graph_that_does_not_fit_otherwise() -> None:
    """What a graph frees as it goes is freed, as without a budget."""

    def shrink(args: list[Tensor]) -> list[Tensor]:
        (x,) = args
        args.clear()
        small = x[:1].clone()
        del x
        return [small.expand(400 * KIB // 4).clone()]

    step = region(shrink)
    with coop.budget(700 * KIB, device="cpu", quiet_after=None, small_bytes=0) as session:
        for i in range(3):
            inputs = [torch.full((400 * KIB // 4,), float(i))]
            (y,) = step.call(inputs)
            assert (y.min().item(), y.max().item()) == (i, i)
            del y
        assert session.stats().peak_bytes <= 700 * KIB


def test_numbers_and_none_are_inputs_too() -> None:
    seen = []

    def scale(args: list[Any]) -> list[Any]:
        seen.append([a if not isinstance(a, Tensor) else None for a in args])
        n, x, factor, nothing, flag = args
        return [x[:n] * factor, n, nothing, flag]

    with coop.budget("64 MiB", device="cpu", quiet_after=None):
        x = torch.randn(ROWS, WIDTH) * 2
        y, n, nothing, flag = region(scale).call([100, x, 0.5, None, True])
        assert (n, nothing, flag) == (100, None, True)
        expected = x[:100] * 0.5
        assert coop.evict(y)
        assert torch.equal(y, expected)
    assert seen == [[100, None, 0.5, None, True]] * 2


def test_a_generator_among_the_inputs_is_as_it_was() -> None:
    """What draws its numbers again in the backward graph is given generators of its own."""

    def noisy(args: list[Any]) -> list[Tensor]:
        x, generator = args
        return [x + torch.randn(x.shape, generator=generator)]

    generator, step = torch.Generator(), region(noisy)
    generator.manual_seed(1)
    with coop.budget("64 MiB", device="cpu", quiet_after=None) as session:
        x = torch.randn(ROWS, WIDTH)
        results = [step.call([x, generator])[0] for _ in range(3)]
        state = generator.get_state()
        expected = [r.clone() for r in results]
        for _ in range(2):
            assert all(coop.evict(r) for r in results)
            assert all(torch.equal(r, e) for r, e in zip(results, expected, strict=True))
        assert session.stats().num_replays == 6
        assert torch.equal(generator.get_state(), state)
    generator.manual_seed(1)
    assert torch.equal(expected[0], x + torch.randn(x.shape, generator=generator))


def test_a_graph_that_is_tried_again_draws_the_same_numbers() -> None:
    def noisy(args: list[Any]) -> list[Tensor]:
        x, generator = args
        y = torch.randn(x.shape, generator=generator)
        return [torch.cat([y] * 6) + x.sum()]

    drawn = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    with coop.budget(900 * KIB, device="cpu", quiet_after=None, small_bytes=0) as session:
        generator, step = torch.Generator().manual_seed(1), region(noisy)
        zeros = torch.zeros(ROWS, WIDTH)
        held = [zeros + i for i in range(9)]
        del held[1::2]  # room enough, in pieces
        (y,) = step.call([zeros, generator])
        assert session.stats().num_retries > 0
        assert torch.equal(y[-ROWS:], drawn)


def test_tensors_of_a_class_come_apart_before_the_graph() -> None:
    weight = TwoTensor(torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH))

    def run(step: Any) -> list[Tensor]:
        w = weight.detach().requires_grad_()
        y = step(inputs, w)
        (gradient,) = torch.autograd.grad(y, w, TwoTensor(ones, ones * 2))
        return [y.a, y.b, gradient.a, gradient.b]

    inputs, ones = torch.randn(ROWS, WIDTH), torch.ones(ROWS, WIDTH)
    expected = run(layer)
    step = compiled()
    with (
        warnings.catch_warnings(action="error", category=UserWarning),
        coop.budget("64 MiB", device="cpu", quiet_after=None) as session,
    ):
        results = run(step)
        for result, e in zip(results, expected, strict=True):
            assert coop.evict(result)
            assert torch.equal(result, e)
        assert session.stats().num_replays > 0


def test_an_input_that_cannot_be_frozen_is_said_once_and_results_stay() -> None:
    step = region(lambda args: [args[0] + 1])
    with coop.budget("64 MiB", device="cpu", quiet_after=None):
        x = torch.randn(ROWS, WIDTH)
        with pytest.warns(UserWarning, match="compiled::by_hand uses stays in memory"):
            (y,) = step.call([x, "text"])
        (z,) = step.call([x, "text"])
        assert torch.equal(y, z)


def test_an_error_inside_a_graph_is_the_programs() -> None:
    def fail(args: list[Tensor]) -> list[Tensor]:
        raise ZeroDivisionError("inside")

    with coop.budget("64 MiB", device="cpu", quiet_after=None):
        x = torch.randn(ROWS, WIDTH) * 2
        with pytest.raises(ZeroDivisionError, match="inside"):
            region(fail).call([x])
        assert coop.evict(x)  # nothing stays locked
        assert x.sum().isfinite()


def test_a_replay_that_fails_on_leaving_lets_its_tensors_go() -> None:
    """Its error holds the frames that it came through."""
    fails = []

    def fail_again(args: list[Tensor]) -> list[Tensor]:
        made = args[0] + 1
        if fails:
            raise ZeroDivisionError("the second time")
        return [made]

    def run() -> None:
        with coop.budget("64 MiB", device="cpu", quiet_after=None):
            (y,) = region(fail_again).call([torch.randn(ROWS, WIDTH) * 2])
            assert coop.evict(y)
            fails.append(True)

    with pytest.raises(coop.LostTensorError, match="the second time"):
        run()


def test_a_compiled_optimizer_is_one_graph_that_ends_a_step() -> None:
    with coop.budget("64 MiB", device="cpu") as session:
        model = nn.Linear(WIDTH, WIDTH)
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
        step = torch.compile(optimizer.step, backend="aot_eager")
        for _ in range(3):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            step()
            optimizer.zero_grad()
        assert session.stats().num_steps == 3
        assert session.stats().num_copies == 0


def test_outside_of_budgets_graphs_are_plain() -> None:
    step = compiled()
    x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH)
    with coop.budget("64 MiB", device="cpu"):
        inside = step(x, weight).clone()
    assert torch.equal(step(x, weight), inside)
    inputs = [x]
    assert region(lambda given: [given is inputs]).call(inputs) == [True]


@pytest.mark.slow
def test_a_graph_that_was_compiled_before_the_first_budget_runs_inside_one() -> None:
    """Dynamo compiles it again: what it guards includes the thread's dispatch keys."""
    program = """
        import torch, coop
        from tests.compiled.test_regions import compiled

        step = compiled()
        x, weight = torch.randn(256, 64), torch.randn(64, 64, requires_grad=True)
        ones = torch.ones(256, 64)
        expected = torch.autograd.grad(step(x, weight), weight, ones)[0]
        with coop.budget("64 MiB", device="cpu", quiet_after=None):
            y = step(x, weight)
            assert coop.evict(y)
            assert torch.equal(torch.autograd.grad(y, weight, ones)[0], expected)
        assert torch.equal(torch.autograd.grad(step(x, weight), weight, ones)[0], expected)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_the_cost_of_a_graph_is_that_of_its_products() -> None:
    graph = make_fx(layer, tracing_mode="fake")(torch.randn(8, 16), torch.randn(16, 16))
    cost = count_cost(graph)
    assert cost.flops == 2 * 8 * 16 * 16
    assert cost.bytes == 4 * (8 * 16 + 16 * 16 + 8 * 16)
    assert cost.contents == "1 add, 1 mm, 1 mul, 1 sin and 1 others"


def test_a_recording_knows_what_graphs_are_and_where_they_were_called() -> None:
    step = compiled()
    with coop.budget("64 MiB", device="cpu", events=True, quiet_after=None) as session:
        x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH, requires_grad=True)
        y = step(x, weight)
        assert coop.evict(y)
        y.sum().backward()
    rows = make_timeline(session.events.recording()).graphs
    forward, backward = sorted(rows, key=lambda row: row["operator"], reverse=True)
    assert forward["operator"] == "compiled::layer[0/0].forward"
    assert backward["operator"] == "compiled::layer[0/0].backward"
    assert forward["inside"] == "2 detach, 1 add, 1 mm, 1 mul and 3 others"
    assert "mm" in backward["inside"]
    assert (forward["runs"], forward["replays"], backward["replays"]) == (1, 1, 0)
    assert "test_regions.py" in forward["line"]


def test_what_a_graph_writes_is_found_through_views() -> None:
    def write(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z[1:].t().mul_(2)
        x.add_(1)
        return x + y + z

    graph = make_fx(write, tracing_mode="fake")(*(torch.randn(4, 4) for _ in range(3)))
    assert find_written(graph) == [0, 2]


@pytest.mark.parametrize("dynamic", [False, True])  # compiled at once; when it runs first
def test_caches_tell_graphs_that_keep_what_was_saved_from_others(dynamic: bool) -> None:
    """Inductor's would give us a backward graph that takes saved tensors for its own memory."""
    tags: list[str] = []

    def note(graph: Any, inputs: Any) -> Any:
        tags.append(torch.compiler.config.cache_key_tag)
        return make_boxed_func(graph.forward)

    def run() -> list[str]:
        torch._dynamo.reset()
        tags.clear()
        x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH, requires_grad=True)
        backend = aot_autograd(fw_compiler=note, bw_compiler=note)
        torch.compile(layer, backend=backend, dynamic=dynamic)(x, weight).sum().backward()
        return tags.copy()

    assert run() == ["", ""]
    with coop.budget("64 MiB", device="cpu"):
        forward, backward = run()
    assert forward == backward == "coop: nothing is donated"
    assert run() == ["", ""]


def test_cuda_graphs_are_left_out_and_that_is_said() -> None:
    """There is no GPU here to compile for: what inductor would hand over."""
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.utils import BoxedBool

    seen = []
    post_compile = _without_cuda_graphs(lambda *args: seen.append(bool(args[3]["cudagraphs"])))
    graph = CompiledFxGraph.__new__(CompiledFxGraph)
    graph.device_types = OrderedSet(["cuda"])
    with coop.budget("64 MiB", device="cpu"):
        with pytest.warns(UserWarning, match="without CUDA graphs"):
            post_compile(graph, [], None, {"cudagraphs": BoxedBool(True)})
        post_compile(graph, [], None, {"cudagraphs": BoxedBool(False)})
    post_compile(graph, [], None, {"cudagraphs": BoxedBool(True)})
    assert seen == [False, False, True]


def test_the_backend_of_cuda_graphs_runs_without_them_and_that_is_said() -> None:
    """It leaves out by itself what lies in main memory."""
    step = torch.compile(layer, backend="cudagraphs")
    x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH, requires_grad=True)
    check = _skipping(lambda graph, num_fixed: None)
    with coop.budget("64 MiB", device="cpu", quiet_after=None):
        y = step(x, weight)
        assert coop.evict(y)
        assert torch.equal(y, layer(x, weight))
        with pytest.warns(UserWarning, match="without CUDA graphs"):
            assert "at addresses that never change" in (check(None, 0) or "")
    from torch._dynamo.backends import cudagraphs

    assert cudagraphs.check_for_skip.__wrapped__ is not None
    assert check(None, 0) is None
