"""Quiet steps on a GPU: what is saved goes to main memory and comes back the same."""

from __future__ import annotations

from tests.cuda.cuda_programs import Program, needs_gpu, programs_of, run
from tests.cuda.programs import quiet

pytestmark = needs_gpu


@programs_of(quiet)
def test_quiet_steps(program: Program) -> None:
    run(program)


def test_a_step_that_is_larger_than_those_before_is_the_same_bits() -> None:
    plain = run(quiet.train_with_larger_batches_at_the_end)
    assert run(quiet.train_with_larger_batches_at_the_end, "120MiB") == plain != ""
