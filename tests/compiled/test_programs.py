"""Compiled programs inside a budget leave what the same compiled programs leave without one."""

from __future__ import annotations

import functools

import pytest
from _pytest.mark import ParameterSet

from tests.adapter.harness import AMPLE_BYTES, assert_identical, rounded, run_budgeted, run_plain
from tests.adapter.slices import debug_every

from .compiled_programs import EVICTING, OTHERS, CompiledProgram

ALL = {**EVICTING, **OTHERS}
# Of the peak with room for everything. A graph is as large as it is: where few of them are most
# of a program, there is less to evict between them.
SHARES = {
    "attention_in_one_graph": 0.75,
    "half_precision": 0.8,
    "checkpointed_blocks": 0.95,
    "whole_model": 1.0,
    "compiled_backward_pass": 1.2,
    "compiled_optimizer": 0.7,
}


def sliced() -> list[ParameterSet]:
    """torch takes seconds to compile some, which are graphs as any other."""
    return [
        pytest.param(*p.values, marks=[*p.marks, pytest.mark.slow])
        if p.values[0] in ("compiled_optimizer", "compiled_backward_pass")
        else p
        for p in debug_every(6, ALL, every=2)
    ]


def check(name: str, backend: str) -> None:
    program: CompiledProgram = ALL[name]
    run = functools.partial(program, backend=backend)
    plain = run_plain(run)
    assert_identical(plain, run_plain(run))
    outcome, ample = run_budgeted(run, AMPLE_BYTES)
    assert_identical(plain, outcome)
    assert (ample.num_evictions, ample.num_replays) == (0, 0)
    outcome, stats = run_budgeted(run, rounded(SHARES.get(name, 0.6) * ample.peak_bytes))
    assert_identical(plain, outcome)
    assert stats.peak_bytes <= stats.budget_bytes
    if name in EVICTING:
        assert stats.num_evictions > 0
        assert stats.num_replays > 0


@pytest.mark.parametrize("name", sliced())
def test_compiled_by_aot_eager(name: str) -> None:
    check(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_compiled_by_inductor(name: str) -> None:
    check(name, "inductor")
