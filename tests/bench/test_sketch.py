"""What a known step may reach, by hand and against the lower bound."""

import math
from pathlib import Path

import pytest

from benchmarks.floor import floor
from benchmarks.optimum import GRAPHS
from benchmarks.program import read_program
from benchmarks.sketch import sketch
from coop.trace import TraceWriter

from .small_program import UNIT, program

PAPER = Path(__file__).parents[2] / "benchmarks" / "traces" / "paper"


def test_the_cheapest_by_the_byte_goes_with_what_is_dead(tmp_path: Path) -> None:
    known = program(tmp_path / "trace.jsonl", UNIT)
    # In any order of budgets.
    one, everything, nothing, none = sketch(
        known, [11 * UNIT, 12 * UNIT, 10 * UNIT, 10 * UNIT - 64]
    )
    assert everything == 0
    assert one == pytest.approx((10 + 20) / 200)
    assert nothing == pytest.approx((100 + 10 + 20) / 200)
    assert none == math.inf


def test_a_smaller_dead_value_is_kept_in_the_place_of_one(tmp_path: Path) -> None:
    known = program(tmp_path / "trace.jsonl", UNIT // 2)
    with_dead, without = sketch(known, [11 * UNIT + UNIT // 2, 11 * UNIT])
    assert with_dead == pytest.approx(10 / 200)
    # It goes, too, before the expensive one.
    assert without == pytest.approx((10 + 20) / 200)


@pytest.mark.parametrize(("num_before", "times"), [(0, 2), (200, 1)])
def test_what_several_need_is_paid_once_if_they_are_read_together(
    tmp_path: Path, num_before: int, times: int
) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        for _ in range(num_before):
            writer.operator("before", 0)
        writer.operator("shared", 50, outputs=[(1, 10 * UNIT)])
        writer.operator("left", 10, inputs=[1], outputs=[(2, UNIT)])
        writer.operator("right", 15, inputs=[1], outputs=[(3, UNIT)])
        writer.free(1)
        writer.operator("large", 1, outputs=[(4, 20 * UNIT)])
        writer.free(4)
        # One operator apart: near in a step of two hundred, and not in one of six.
        writer.operator("reads", 4, inputs=[2])
        writer.operator("reads", 20, inputs=[3])
    (both,) = sketch(read_program(path), [20 * UNIT])
    assert both == pytest.approx((10 + 15 + 50 * times) / 100)


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_never_below_the_floor(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.jsonl"
    GRAPHS[name].write(path)
    known = read_program(path)
    budgets = [int(known.needed_bytes().max() * share / 100) for share in range(40, 100, 5)]
    extras = sketch(known, budgets)
    for least, reached in zip(floor(known, budgets), extras, strict=True):
        assert reached >= least * (1 - 1e-9)
    assert extras == sorted(extras, reverse=True)  # more memory never costs more


def test_it_is_close_to_the_floor_where_a_schedule_is(tmp_path: Path) -> None:
    known = read_program(PAPER / "resnet50.jsonl.gz")
    budgets = [int(known.needed_bytes().max() * share) for share in (0.8, 0.6, 0.4)]
    for least, reached in zip(floor(known, budgets), sketch(known, budgets), strict=True):
        assert least <= reached <= 1.15 * least
