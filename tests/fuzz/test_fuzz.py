"""A fixed slice of the random programs of `make fuzz`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.adapter.slices import first

from .check import check, difference, run_inside, run_plain
from .program import Program, random_program, random_trials, repeated_trial, shrink

NUM_SEEDS, NUM_QUICK_SEEDS = 60, 6

pytestmark = pytest.mark.debug_build


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# 175 and 293: an `out=` that did not fit was tried again with its new sizes and its old memory.
@pytest.mark.parametrize("seed", first(NUM_QUICK_SEEDS, [175, 293, *range(NUM_SEEDS)]))
def test_a_random_program_is_the_same_bits_or_does_not_fit(seed: int) -> None:
    for trial in random_trials(seed):
        failure = check(trial).failure
        assert failure is None, f"{failure}: python -m tests.fuzz --seed {seed} shrinks it"


@pytest.mark.parametrize("part", first(1, [1, 0, 2, 3, 4]))
@pytest.mark.slow_on_debug
def test_a_random_program_whose_steps_repeat_is_the_same_bits_while_it_is_foreseen(
    part: int,
) -> None:
    num_followed = 0
    for seed in range(20 * part, 20 * part + 20):
        result = check(repeated_trial(seed))
        assert result.failure is None, f"{result.failure}: python -m tests.fuzz --seed {seed}"
        num_followed += result.num_followed
    assert num_followed > 5


# Seed 556, shrunk.
LOST_ON_LEAVING: Program = (
    ("matmul", (30093, 328, 11142, 51794, 32002, 5849)),
    ("factory", (42953, 35916, 6404, 34931, 16655, 46803)),
    ("binary", (6845, 55255, 64649, 55735, 3829, 56889)),
    ("out", (1924, 39010, 55798, 30789, 29501, 8356)),
    ("foreach", (55387, 51259, 59066, 37279, 64633, 13405)),
    ("foreach", (63660, 20724, 40786, 15967, 53603, 34527)),
    ("binary", (13852, 43503, 11103, 57429, 34786, 30724)),
    ("factory", (28390, 23248, 57241, 54759, 29239, 10492)),
    ("unary", (20493, 32920, 43229, 35242, 50260, 16531)),
    ("binary", (38963, 8105, 65243, 17472, 44228, 13977)),
    ("view", (31302, 22553, 16064, 10228, 22110, 28544)),
    ("view", (14445, 3075, 48238, 7632, 62942, 41876)),
    ("random", (34951, 26072, 13686, 40117, 6683, 58104)),
    ("delete", (48291, 37145, 52705, 48766, 4787, 25597)),
    ("random", (43312, 33145, 30160, 37825, 19266, 502)),
    ("unary", (64751, 34892, 32500, 11346, 31676, 37303)),
    ("scatter", (11008, 30746, 24721, 56792, 38420, 6409)),
    ("random", (31895, 53532, 38785, 63792, 57744, 33774)),
    ("view", (1710, 58824, 10730, 46738, 26464, 26222)),
    ("inplace", (47919, 2715, 39654, 15987, 9684, 6478)),
    ("leaf", (39222, 45162, 51248, 6854, 3173, 64106)),
)


def test_what_does_not_fit_on_leaving_is_tried_again_when_others_have_left() -> None:
    """It raised LostTensorError: the first attempt was in need of what only the recipes of other
    evicted tensors kept."""
    actual = run_inside(LOST_ON_LEAVING, 64 * 1024, {"window": False, "small_bytes": 0})
    assert actual.stopped is None
    assert difference(run_plain(LOST_ON_LEAVING), actual) is None


def test_shrinking_leaves_only_what_is_needed() -> None:
    import random

    program = random_program(random.Random(0), 100)

    def fails(candidate: Program) -> bool:
        kinds = [kind for kind, _ in candidate]
        return "view" in kinds and "inplace" in kinds

    assert fails(program)
    assert sorted(kind for kind, _ in shrink(program, fails)) == ["inplace", "view"]
