"""The lower bound of benchmarks.floor, by hand and against the optimum."""

import math
from pathlib import Path

import pytest

from benchmarks.floor import floor, floor_with_copies
from benchmarks.optimum import chain, optimum, random_graph, recurrent, residual, ushape
from benchmarks.program import read_program
from coop.planner import smallest_budget
from coop.simulate import peak_without_limit
from coop.trace import TraceWriter, read_trace

from .small_program import UNIT, program


def test_the_cheapest_by_the_byte_goes(tmp_path: Path) -> None:
    everything, nothing, none = floor(
        program(tmp_path / "trace.jsonl", UNIT // 2), [12 * UNIT, 10 * UNIT, 10 * UNIT - 64]
    )
    assert everything == 0
    # What is dead is recomputed with what was made from it.
    assert nothing == pytest.approx((100 + 10 + 20) / 200)
    assert none == math.inf  # the large operator does not fit


def test_a_dead_value_may_be_kept(tmp_path: Path) -> None:
    (one_and_a_half, three_quarters, one) = floor(
        program(tmp_path / "trace.jsonl", UNIT // 2), [23 * UNIT // 2, 47 * UNIT // 4, 11 * UNIT]
    )
    # The dead one takes half of the bytes of the cheap one.
    assert one_and_a_half == pytest.approx(10 / 200)
    # Halves of values may be kept, which is a bound all the more.
    assert three_quarters == pytest.approx(5 / 200)
    assert one == pytest.approx((10 + 20) / 200)


def test_what_several_need_is_paid_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.operator("shared", 50, outputs=[(1, 10 * UNIT)])
        writer.operator("left", 10, inputs=[1], outputs=[(2, UNIT)])
        writer.operator("right", 15, inputs=[1], outputs=[(3, UNIT)])
        writer.free(1)
        writer.operator("large", 1, outputs=[(4, 20 * UNIT)])
        writer.free(4)
        writer.operator("reads", 24, inputs=[2, 3])
    both, one = floor(read_program(path), [20 * UNIT, 21 * UNIT])
    assert both == pytest.approx((50 + 10 + 15) / 100)
    # Half of both is less than all of one: the price of a byte is the same for both together.
    assert one == pytest.approx((50 + 10 + 15) / 2 / 100)


def test_what_became_a_root_is_there_for_what_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.operator("gradient", 50, outputs=[(1, UNIT)])
        writer.make_root(1)
        writer.operator("clipped", 10, inputs=[1], outputs=[(2, UNIT)])
        writer.operator("large", 1, outputs=[(3, 10 * UNIT)])
        writer.free(3)
        writer.operator("reads", 39, inputs=[2])
    (without,) = floor(read_program(path), [11 * UNIT])
    assert without == pytest.approx(10 / 100)


SMALL = {
    "chain": chain(4, lambda k: 60 if k % 2 else 4, lambda _: 2),
    "residual": residual(3),
    "u-shape": ushape(2),
    "recurrent": recurrent(2),
} | {f"random {seed}": random_graph(seed, 4) for seed in range(6)}


@pytest.mark.parametrize("name", SMALL)
def test_it_is_never_above_the_optimum(tmp_path: Path, name: str) -> None:
    graph = SMALL[name]
    path = tmp_path / "trace.jsonl"
    smallest, largest = smallest_budget(graph.write(path)), peak_without_limit(read_trace(path))
    for position in (0.7, 0.3, 0.0):
        budget = int(smallest + position * (largest - smallest))
        (least,) = floor(read_program(path), [budget])
        cost, is_proved = optimum(graph, budget)
        assert is_proved
        assert least <= cost / sum(graph.cost) - 1 + 1e-6


def test_with_copies_a_step_takes_the_longer_of_both_ways(tmp_path: Path) -> None:
    found = program(tmp_path / "trace.jsonl", UNIT)  # 200 ns
    budgets = [12 * UNIT, 11 * UNIT, 10 * UNIT, 9 * UNIT]
    # One unit in 20 ns: beside the operators for nothing.
    assert floor_with_copies(found, budgets, UNIT / 20e-9) == [0, 0, 0, 0]
    # In 400 ns: a copy of what is missing would take twice as long as the step. The best is to
    # recompute all but a part.
    fast, slow = (floor_with_copies(found, budgets, UNIT / ns * 1e9) for ns in (400, 40_000))
    least = floor(found, budgets)
    for one, other, nothing in zip(fast, slow, least, strict=True):
        assert one <= other + 1e-6
        assert other <= nothing + 1e-6
    assert slow[:3] == pytest.approx(least[:3], abs=0.02)
    # That the large operator's own result cannot leave is not known: one unit of it would have to.
    assert math.isinf(least[3])
    assert fast[3] == pytest.approx(400 / 200 - 1, abs=0.02)
