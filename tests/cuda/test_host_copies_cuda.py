"""Copies in page-locked main memory: the same bits, whatever leaves while the GPU is behind."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_programs import Program, needs_gpu, programs_of, run
from tests.cuda.programs import host_copies, updates

pytestmark = needs_gpu


@programs_of(host_copies)
def test_copies(program: Program) -> None:
    run(program)


@pytest.mark.parametrize("budget", ["640MiB", "480MiB"])
def test_a_model_trains_whose_parameters_and_state_do_not_fit(budget: str) -> None:
    plain = run(host_copies.train)
    assert run(host_copies.train, budget, "2GiB") == plain != ""


def test_updates_in_parts_have_the_same_bits() -> None:
    """Of up to 320 MiB (double precision, five lists): none is updated as a whole."""
    plain = run(updates.update_all)
    assert run(updates.update_all, "224MiB", "2GiB") == plain != ""


@pytest.mark.parametrize("kind", ["fused", "foreach"])
def test_an_optimizer_of_all_tensors_trains_what_does_not_fit(kind: str) -> None:
    plain = run(host_copies.train, "", "0", kind)
    assert run(host_copies.train, "480MiB", "2GiB", kind) == plain != ""


def test_everything_leaves_after_every_operator() -> None:
    plain = run(host_copies.train, "", "0", "small")
    assert run(host_copies.train, "256MiB", "1GiB", "small", "paranoid") == plain != ""


def test_the_hooks_of_the_benchmark_train_the_same_bits() -> None:
    assert run(host_copies.train_with_hooks, "hooks") == run(host_copies.train_with_hooks) != ""


def test_a_share_of_main_memory_is_the_room() -> None:
    plain = run(host_copies.train)
    assert run(host_copies.train, "640MiB", "auto") == plain != ""
