"""The lower bound of benchmarks.floor, by hand and against the optimum."""

from pathlib import Path

import pytest

from benchmarks.floor import floor, read_program
from benchmarks.optimum import GRAPHS, optimum
from coop.trace import TraceWriter

UNIT = 6400  # bytes


def test_the_cheapest_by_the_byte_goes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.operator("dear", 100, outputs=[(1, UNIT)])
        writer.operator("dead", 20, outputs=[(2, UNIT)])
        writer.operator("cheap", 10, inputs=[2], outputs=[(3, UNIT)])
        writer.free(2)
        writer.operator("large", 1, outputs=[(4, 10 * UNIT)])
        writer.free(4)
        writer.operator("reads", 69, inputs=[1, 3])
    program = read_program(path)
    everything, nothing = floor(program, [12 * UNIT, 10 * UNIT])
    assert everything == 0
    # What is dead is recomputed with what was made from it.
    assert nothing == pytest.approx((100 + 10 + 20) / 200)
    one, half = floor(program, [11 * UNIT, 11 * UNIT + UNIT // 2])
    assert one == pytest.approx((10 + 20) / 200)
    assert half == pytest.approx((10 + 20) / 2 / 200)


def test_what_several_need_is_paid_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        # A norm whose result is overwritten, and whose statistics stay.
        writer.operator("norm", 30, outputs=[(1, 9 * UNIT), (2, UNIT)])
        writer.operator("relu_", 10, inputs=[1], writes=[1])
        writer.operator("large", 1, outputs=[(3, 20 * UNIT)])
        writer.free(3)
        writer.operator("reads", 59, inputs=[1, 2])
    program = read_program(path)
    neither, statistics_stay = floor(program, [20 * UNIT, 21 * UNIT])
    assert neither == pytest.approx((30 + 10) / 100)
    # Nine tenths of the norm's cost are the activation's, and eight ninths of that have to go.
    assert statistics_stay == pytest.approx((3 + (10 + 27) * 8 / 9) / 100)


@pytest.mark.parametrize(("name", "mib"), [("chain of 8", 13.7), ("u-shape", 34.4)])
def test_it_is_never_above_the_optimum(tmp_path: Path, name: str, mib: float) -> None:
    graph = GRAPHS[name]
    path = tmp_path / "trace.jsonl"
    graph.write(path)
    budget = int(mib * 2**20)
    (least,) = floor(read_program(path), [budget])
    cost, is_proved = optimum(graph, budget)
    assert is_proved
    assert 0 < least <= cost / sum(graph.cost) - 1
