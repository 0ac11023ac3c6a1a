"""Schedules with copies on a GPU: copies begin ahead, and no bit is another."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_programs import Program, needs_gpu, programs_of, run
from tests.cuda.programs import copies_ahead

pytestmark = needs_gpu


@programs_of(copies_ahead)
def test_copies_ahead(program: Program) -> None:
    run(program)


@pytest.mark.parametrize("kind", ["", "changes", "streams", "busy"])
def test_the_bits_are_those_of_plain_torch(kind: str) -> None:
    plain = run(copies_ahead.train, "", "0", kind)
    for budget in ("2600MiB", "1900MiB"):
        assert run(copies_ahead.train, budget, "4GiB", kind) == plain != ""


@pytest.mark.parametrize("budget", ["720MiB", "560MiB"])
def test_parameters_and_state_that_do_not_fit_stream(budget: str) -> None:
    plain = run(copies_ahead.stream)
    assert run(copies_ahead.stream, budget, "4GiB") == plain != ""


def test_they_are_when_schedules_are_made_meanwhile() -> None:
    plain = run(copies_ahead.train, "", "0", "", "200")
    assert run(copies_ahead.train, "2200MiB", "4GiB", "", "200", "yes") == plain != ""
