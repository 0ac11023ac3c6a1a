"""Ctrl-C on a GPU."""

from __future__ import annotations

from tests.cuda.cuda_programs import needs_gpu, run
from tests.cuda.programs import interrupts

pytestmark = needs_gpu


def test_a_pass_that_recomputes_for_long_ends() -> None:
    run(interrupts.a_pass_that_recomputes_for_long_ends)


def test_an_interrupted_batch_is_skipped_and_nothing_else() -> None:
    plain = run(interrupts.a_batch_is_skipped)
    assert run(interrupts.a_batch_is_skipped, "150MiB") == plain != ""
