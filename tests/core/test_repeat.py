"""A trace that goes on as it ended."""

from __future__ import annotations

from coop.simulate import STEADY_STEPS
from tests.core.test_foresight import DEPTH, Residual


def test_the_last_step_is_repeated_with_storages_of_its_own() -> None:
    written, repeated = Residual(), Residual()
    for _ in range(STEADY_STEPS):
        written.step()
    for _ in range(3):
        repeated.step()
    longer, origins = repeated.trace.repeated(STEADY_STEPS)
    names = [str(number) for number in range(3)]
    assert longer.json_lines(0, names, {}) == written.trace.json_lines(0, names, {})
    entries = len(repeated.trace) // 3
    assert origins[: 3 * entries] == list(range(3 * entries))
    assert origins[3 * entries :] == list(range(2 * entries, 3 * entries)) * (STEADY_STEPS - 3)


def test_steps_that_differ_are_not_repeated() -> None:
    program = Residual()
    for depth in (DEPTH, DEPTH, DEPTH - 1):
        program.step(depth)
    assert len(program.trace.repeated(STEADY_STEPS)[0]) == len(program.trace)


def test_two_steps_are_not_repeated() -> None:
    program = Residual()
    program.step()
    program.step()
    assert len(program.trace.repeated(STEADY_STEPS)[0]) == len(program.trace)
