"""The engine on a GPU."""

from __future__ import annotations

from tests.cuda.cuda_programs import Program, needs_gpu, programs_of, run
from tests.cuda.programs import engine, streams

pytestmark = needs_gpu


@programs_of(engine)
def test_engine(program: Program) -> None:
    run(program)


@programs_of(streams)
def test_streams(program: Program) -> None:
    run(program)


def test_amp_with_a_scaler_trains_the_same_bits() -> None:
    plain = run(engine.amp_with_a_scaler)
    for budget in ("2GiB", "420MiB"):
        assert run(engine.amp_with_a_scaler, budget) == plain != "", budget
